"""Stand-in (rehearsal only) for `sgl_kernel.speculative`: what n-gram speculation asks of it."""

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Given masks [batch_size, n, n] (flat) where (i, j) says that node j is an ancestor of node i (entries
    with j >= i are ignored), write each node's position (sequence length + number of ancestors), flat index,
    first child and next sibling (-1 for none).

    A node's parent is its ancestor of the highest number, its first child the lowest node it is an ancestor
    of, its next sibling the next node of the same parent; roots have no siblings.
    """
    n = draft_token_num
    masks = tree_mask[: batch_size * n * n].view(batch_size, n, n).to(torch.bool).tril(-1)
    nodes = torch.arange(n)
    parents = torch.where(masks, nodes, -1).amax(dim=2)
    children = torch.where(masks, nodes[:, None], n).amin(dim=1)
    same_parent = (
        (parents[:, :, None] == parents[:, None, :]) & (nodes[:, None] > nodes) & (parents >= 0)[:, None, :]
    )
    siblings = torch.where(same_parent, nodes[:, None], n).amin(dim=1)

    depths = masks.sum(dim=2)
    positions[: batch_size * n] = (verified_seq_len[:batch_size, None].to(positions.dtype) + depths).flatten()
    retrieve_index[:batch_size] = torch.arange(batch_size)[:, None] * n + nodes
    retrieve_next_token[:batch_size] = torch.where(children < n, children, -1)
    retrieve_next_sibling[:batch_size] = torch.where(siblings < n, siblings, -1)
