"""Trees of draft tokens: building one from the drafter's choices, and greedy acceptance along one.

A tree of n nodes a request: node 0 is the last accepted token, the others are drafts. `first child` and `next
sibling` links (-1 for none) are node numbers inside the request; siblings are linked in ascending order.
"""

import torch

# Values of SGLang's TreeMaskMode
FULL_MASK = 0
QLEN_ONLY = 1


def _parents_of(selected: list[int], parent_list: list[int], topk: int) -> list[int | None]:
    """Given the candidates chosen for nodes 1.. (ascending), return each such node's parent node, None if
    unknown.

    Candidate c was drafted from group c // topk; group 0 is the root, group g > 0 is candidate
    parent_list[g].
    """
    node_of_candidate: dict[int, int] = {}
    for node, candidate in enumerate(selected, start=1):
        node_of_candidate.setdefault(candidate, node)
    parents: list[int | None] = []
    for candidate in selected:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of_candidate.get(parent_list[group]))
    return parents


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Given the drafter's choices, fill each node's position, links and visibility mask.

    QLEN_ONLY: the mask is [requests, n, n] flat; FULL_MASK: a request's rows also have its whole prefix in
    front, which the caller has set to True. A node sees the root, its ancestors and itself.
    """
    nodes = draft_token_num
    lengths = verified_seq_len.tolist()
    mask_start = 0
    for request, length in enumerate(lengths):
        prefix = length if int(tree_mask_mode) == FULL_MASK else 0
        if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
            raise NotImplementedError(
                f"tree mask mode {tree_mask_mode} is not part of the rehearsal stand-in"
            )
        mask = tree_mask[mask_start : mask_start + nodes * (prefix + nodes)].view(nodes, prefix + nodes)
        mask_start += mask.numel()
        visible = mask[:, prefix:]
        visible.fill_(False)
        visible[:, 0] = True

        parents = _parents_of(
            selected_index[request, : nodes - 1].tolist(), parent_list[request].tolist(), topk
        )
        child_links, sibling_links = [-1] * nodes, [-1] * nodes
        for node in range(nodes - 1, 0, -1):
            parent = parents[node - 1]
            if parent is not None:
                sibling_links[node], child_links[parent] = child_links[parent], node
        retrieve_index[request] = request * nodes + torch.arange(nodes)
        retrieve_next_token[request] = torch.tensor(child_links)
        retrieve_next_sibling[request] = torch.tensor(sibling_links)

        node_positions = [length]
        for node in range(1, nodes):
            steps, ancestor = 0, node
            while steps < depth:
                steps += 1
                visible[node, ancestor] = True
                parent = parents[ancestor - 1]
                if not parent:
                    break
                ancestor = parent
            node_positions.append(length + steps)
        positions[request * nodes : (request + 1) * nodes] = torch.tensor(node_positions)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,  # spelled so at the call site
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk down each request's tree while a child carries the token the target predicts at the current node.

    Writes per request: the flat indices of the accepted nodes, root first (`accept_index`), the number of
    accepted drafts (`accept_token_num`, without the bonus token), and into `predicts` (flat) the target's
    token at each accepted node, the bonus token last. At most `accept_index.shape[1] - 1` drafts are
    accepted.
    """
    predicted = target_predict.flatten().tolist()
    width = accept_index.shape[1]
    for request in range(candidates.shape[0]):
        tokens = candidates[request].tolist()
        flat = retrive_index[request].tolist()
        first_child = retrive_next_token[request].tolist()
        next_sibling = retrive_next_sibling[request].tolist()

        node, accepted = 0, [flat[0]]
        while len(accepted) < width:
            wanted = predicted[accepted[-1]]
            child = first_child[node]
            while child != -1 and tokens[child] != wanted:
                child = next_sibling[child]
            if child == -1:
                break
            node = child
            accepted.append(flat[child])
        for index in accepted:
            predicts[index] = predicted[index]
        accept_index[request, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        accept_token_num[request] = len(accepted) - 1
