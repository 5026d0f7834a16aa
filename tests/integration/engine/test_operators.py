"""Each operator of the stand-in against its written-out definition, over generated shapes."""

import ctypes

import definitions
import pytest
import sgl_kernel
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask

settings.register_profile("engine", deadline=None, max_examples=40)
settings.load_profile("engine")

POOL_LENGTH = 24


def ints(values: list[int] | list[list[int]], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """Rows (distinct), start and end columns of each, and the slot table."""
    count = draw(st.integers(1, 5))
    rows = draw(st.permutations(range(count + 2)))[:count]
    starts = [draw(st.integers(0, 10)) for _ in rows]
    ends = [start + draw(st.integers(0, 8)) for start in starts]
    table = [[row * 1000 + column for column in range(POOL_LENGTH)] for row in range(count + 2)]
    return list(rows), starts, ends, table


def test_it_is_a_stand_in_and_says_so() -> None:
    assert "stand-in" in (sgl_kernel.__doc__ or "").lower()
    assert "stand.in" in sgl_kernel.__version__
    assert not hasattr(sgl_kernel, "convert_weight_packed")
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")


@given(requests(), st.sampled_from([torch.int32, torch.int64]))
def test_assign_req_to_token_pool(
    drawn: tuple[list[int], list[int], list[int], list[list[int]]], kind: torch.dtype
) -> None:
    rows, starts, ends, table = drawn
    slots = list(range(500, 500 + sum(ends) - sum(starts)))
    written = ints(table, torch.int32)
    sgl_kernel.assign_req_to_token_pool_cpu(
        ints(rows), written, ints(starts, kind), ints(ends, kind), ints(slots), POOL_LENGTH
    )
    assert written.tolist() == definitions.assign_table(rows, table, starts, ends, slots)


@given(requests(), st.sampled_from([torch.int32, torch.int64]))
def test_assign_extend_cache_locs(
    drawn: tuple[list[int], list[int], list[int], list[list[int]]], kind: torch.dtype
) -> None:
    rows, starts, ends, table = drawn
    wanted = definitions.assign_extend(rows, table, starts, ends)
    found = torch.full((len(wanted) + 3,), -7)
    sgl_kernel.assign_extend_cache_locs_cpu(
        ints(rows), ints(table, torch.int32), ints(starts, kind), ints(ends, kind), found, POOL_LENGTH
    )
    assert found.tolist() == [*wanted, -7, -7, -7]


@given(requests(), st.integers(1, 3), st.integers(1, 4))
def test_assign_draft_cache_locs_contiguous(
    drawn: tuple[list[int], list[int], list[int], list[list[int]]], topk: int, steps: int
) -> None:
    rows, lengths, _, table = drawn
    wanted = definitions.assign_extend(rows, table, lengths, [length + topk * steps for length in lengths])
    found = torch.zeros(len(wanted), dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        ints(rows), ints(table, torch.int32), ints(lengths, torch.int32), found, POOL_LENGTH, topk, steps
    )
    assert found.tolist() == wanted


@given(requests(), st.integers(1, 3), st.integers(1, 4))
def test_build_draft_decode_metadata(
    drawn: tuple[list[int], list[int], list[int], list[list[int]]], topk: int, steps: int
) -> None:
    rows, lengths, _, table = drawn
    before = ints(table, torch.int32)
    found = sgl_kernel.build_draft_decode_metadata_cpu(
        before, ints(rows), ints(lengths, torch.int32), topk, steps, POOL_LENGTH
    )
    assert found.shape == (len(rows) * topk, POOL_LENGTH)
    assert before.tolist() == table, "the request's own table must stay as it was"
    for line, wanted in zip(
        found.tolist(), definitions.draft_table(rows, table, lengths, topk, steps), strict=True
    ):
        assert line[: len(wanted)] == wanted


def test_build_draft_decode_metadata_at_the_pools_end() -> None:
    table = ints([list(range(POOL_LENGTH))], torch.int32)
    found = sgl_kernel.build_draft_decode_metadata_cpu(
        table, ints([0]), ints([POOL_LENGTH - 1], torch.int32), 2, 4, POOL_LENGTH
    )
    assert found[:, : POOL_LENGTH - 1].tolist() == [list(range(POOL_LENGTH - 1))] * 2


@given(st.integers(1, 4), st.sampled_from([torch.bfloat16, torch.float32, torch.uint8]), st.data())
def test_copy_all_layer_kv_cache(layers: int, kind: torch.dtype, data: st.DataObject) -> None:
    slots = 9
    shapes = [(slots, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))) for _ in range(layers)]
    buffers = [torch.randint(0, 200, shape).to(kind) for shape in shapes]
    moves = data.draw(st.lists(st.integers(0, slots - 1), max_size=6, unique=True))
    sources = [data.draw(st.integers(0, slots - 1)) for _ in moves]
    wanted = [[list(map(list, slot)) for slot in buffer.tolist()] for buffer in buffers]
    for buffer, lists in zip(buffers, wanted, strict=True):
        before = buffer.tolist()
        for target, source in zip(moves, sources, strict=True):
            lists[target] = before[source]

    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        ints([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
        ints(moves),
        ints(sources),
    )
    assert [buffer.tolist() for buffer in buffers] == wanted
    assert ctypes.sizeof(ctypes.c_void_p) == 8


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_fill_bonus_tokens(accept_lens: list[int]) -> None:
    width = 5
    tokens = [[100 * request + place for place in range(width)] for request in range(len(accept_lens))]
    found = torch.full((len(accept_lens),), -1, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(ints(tokens, torch.int32), ints(accept_lens, torch.int32), found, width)
    assert found.tolist() == [tokens[request][length - 1] for request, length in enumerate(accept_lens)]


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_fill_accept_out_cache_loc(kept: list[bool]) -> None:
    index = [place if keep else -1 for place, keep in enumerate(kept)]
    slots = [1000 + place for place in range(len(kept))]
    found = torch.full((len(kept),), -9)
    sgl_kernel.fill_accept_out_cache_loc_cpu(ints(index, torch.int32), ints(slots), found)
    wanted = [slots[place] for place in index if place != -1]
    assert found.tolist() == wanted + [-9] * (len(kept) - len(wanted))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.booleans())
def test_rotate_input_ids(lengths: list[int], selecting: bool) -> None:
    starts = [sum(lengths[:request]) for request in range(len(lengths))]
    before = list(range(sum(lengths)))
    new = [900 + request for request in range(len(lengths))]
    selected = [start + max(length - 1, 0) // 2 for start, length in zip(starts, lengths, strict=True)]
    wanted = list(before)
    for request, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        for place in range(length - 1):
            wanted[start + place] = before[start + place + 1]
        if length:
            wanted[selected[request] if selecting else start + length - 1] = new[request]
    found = ints(before)
    sgl_kernel.rotate_input_ids_cpu(
        found, ints(starts), ints(lengths), ints(new), ints(selected) if selecting else None
    )
    assert found.tolist() == wanted


@st.composite
def drafted_trees(draw: st.DrawFn) -> tuple[definitions.Tree, list[int], list[int], int, int]:
    """A tree as a drafter makes it: in each of `steps` rounds, each of the `topk` candidates of the round
    before gets `topk` continuations, of which `topk` are kept for the next round. Returns the tree of the
    chosen candidates, the choice, the list of group parents, topk and the number of rounds."""
    topk, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    parent_candidate: list[int | None] = [None] * topk
    group_parents = [-1, *range(topk)]
    last_round = list(range(topk))
    for _ in range(steps - 1):
        first = len(parent_candidate)
        for candidate in last_round:
            parent_candidate += [candidate] * topk
        kept = draw(st.permutations(range(first, len(parent_candidate))))[:topk]
        last_round = sorted(kept)
        group_parents += last_round
    # A choice that holds every chosen candidate's parent, as the highest scores do.
    chosen: list[int] = []
    wanted = draw(st.integers(1, len(parent_candidate)))
    while len(chosen) < wanted:
        possible = [
            candidate
            for candidate, above in enumerate(parent_candidate)
            if candidate not in chosen and (above is None or above in chosen)
        ]
        if not possible:
            break
        chosen.append(draw(st.sampled_from(possible)))
    chosen.sort()
    parents: list[int | None] = [None]
    for candidate in chosen:
        above = parent_candidate[candidate]
        parents.append(0 if above is None else chosen.index(above) + 1)
    # As at the call site: the last round's own group parents are not passed.
    passed = group_parents[: 1 + topk + (steps - 2) * topk] if steps > 1 else []
    return definitions.Tree(parents), chosen, passed, topk, steps


@given(drafted_trees(), st.lists(st.integers(0, 6), min_size=1, max_size=3), st.booleans())
def test_build_tree(
    drawn: tuple[definitions.Tree, list[int], list[int], int, int], lengths: list[int], full_mask: bool
) -> None:
    tree, chosen, group_parents, topk, steps = drawn
    nodes, count = len(chosen) + 1, len(lengths)
    mask = torch.ones(
        sum(nodes * ((length if full_mask else 0) + nodes) for length in lengths), dtype=torch.bool
    )
    positions = torch.full((count * nodes,), -5)
    index, child, sibling = (torch.full((count, nodes), -1) for _ in range(3))
    sgl_kernel.build_tree_kernel_efficient_cpu(
        ints([group_parents] * count).view(count, -1),
        ints([chosen] * count),
        ints(lengths),
        mask,
        positions,
        index,
        child,
        sibling,
        topk,
        steps,
        nodes,
        0 if full_mask else 1,
    )
    wanted_mask: list[bool] = []
    for length in lengths:
        for node in range(nodes):
            wanted_mask += [True] * (length if full_mask else 0)
            wanted_mask += [other in tree.path(node) for other in range(nodes)]
    assert mask.tolist() == wanted_mask
    assert positions.tolist() == [
        length + len(tree.path(node)) - 1 for length in lengths for node in range(nodes)
    ]
    assert index.flatten().tolist() == list(range(count * nodes))
    assert child.tolist() == [[tree.first_child(node) for node in range(nodes)]] * count
    assert sibling.tolist() == [[tree.next_sibling(node) for node in range(nodes)]] * count


@st.composite
def trees(draw: st.DrawFn, nodes: int) -> definitions.Tree:
    return definitions.Tree([None, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))])


@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 6), st.data())
def test_verify_tree_greedy(nodes: int, count: int, width: int, data: st.DataObject) -> None:
    forest = [data.draw(trees(nodes)) for _ in range(count)]
    words = st.integers(0, 3)
    tokens = [[data.draw(words) for _ in range(nodes)] for _ in range(count)]
    predicted = [[data.draw(words) for _ in range(nodes)] for _ in range(count)]
    predicts = torch.full((count * nodes,), -1, dtype=torch.int32)
    accept_index = torch.full((count, width), -1, dtype=torch.int32)
    accepted_drafts = torch.full((count,), -1, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted_drafts,
        candidates=ints(tokens),
        retrive_index=torch.arange(count * nodes).view(count, nodes),
        retrive_next_token=ints([[tree.first_child(node) for node in range(nodes)] for tree in forest]),
        retrive_next_sibling=ints([[tree.next_sibling(node) for node in range(nodes)] for tree in forest]),
        target_predict=ints(predicted),
    )
    wanted_predicts = [-1] * (count * nodes)
    for request, tree in enumerate(forest):
        accepted = definitions.accept_greedily(tree, tokens[request], predicted[request], width)
        assert accepted_drafts[request] == len(accepted) - 1
        flat = [request * nodes + node for node in accepted]
        assert accept_index[request].tolist() == flat + [-1] * (width - len(flat))
        for node, place in zip(accepted, flat, strict=True):
            wanted_predicts[place] = predicted[request][node]
    assert predicts.tolist() == wanted_predicts


@given(st.integers(1, 8), st.integers(1, 3), st.data())
def test_reconstruct_indices_from_tree_mask(nodes: int, count: int, data: st.DataObject) -> None:
    forest = [data.draw(trees(nodes)) for _ in range(count)]
    lengths = [data.draw(st.integers(0, 50)) for _ in range(count)]
    # Above the diagonal anything may stand: it is not read.
    mask = [
        [[other in tree.path(node) if other <= node else data.draw(st.booleans()) for other in range(nodes)]
         for node in range(nodes)]
        for tree in forest
    ]  # fmt: skip
    positions = torch.full((count * nodes,), -5)
    index, child, sibling = (torch.full((count, nodes), -5) for _ in range(3))
    reconstruct_indices_from_tree_mask(
        torch.tensor(mask).flatten(), ints(lengths), positions, index, child, sibling, count, nodes
    )
    assert positions.tolist() == [
        lengths[request] + len(tree.path(node)) - 1
        for request, tree in enumerate(forest)
        for node in range(nodes)
    ]
    assert index.flatten().tolist() == list(range(count * nodes))
    assert child.tolist() == [[tree.first_child(node) for node in range(nodes)] for tree in forest]
    assert sibling.tolist() == [[tree.next_sibling(node) for node in range(nodes)] for tree in forest]


SLOTS = 64


@st.composite
def attention_cases(draw: st.DrawFn) -> dict[str, object]:
    kv_heads = draw(st.integers(1, 2))
    count = draw(st.integers(1, 3))
    prefixes = [draw(st.integers(0, 7)) for _ in range(count)]
    return {
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.integers(1, 3)),
        "size": draw(st.sampled_from([2, 4])),
        "value_size": draw(st.sampled_from([2, 3])),
        "prefixes": prefixes,
        "cap": draw(st.sampled_from([0.0, 1.5])),
        "window": draw(st.sampled_from([0, 0, 1, 3])),
        "sinks": draw(st.booleans()),
        "k_scale": draw(st.sampled_from([1.0, 0.5])),
        "v_scale": draw(st.sampled_from([1.0, 2.0])),
        "seed": draw(st.integers(0, 10_000)),
    }


class Attention:
    """Random tensors for one case, and its written-out answer."""

    def __init__(self, case: dict[str, object], new_tokens: list[int]) -> None:
        self.__dict__.update(case)
        torch.manual_seed(case["seed"])
        self.new_tokens = new_tokens
        self.count = len(new_tokens)
        self.lengths = [a + b for a, b in zip(self.prefixes, new_tokens, strict=True)]
        self.total = sum(new_tokens)
        self.query = torch.randn(self.total, self.heads, self.size)
        self.key = torch.randn(self.total, self.kv_heads, self.size)
        self.value = torch.randn(self.total, self.kv_heads, self.value_size)
        self.k_buffer = torch.randn(SLOTS, self.kv_heads, self.size)
        self.v_buffer = torch.randn(SLOTS, self.kv_heads, self.value_size)
        width = max(self.lengths) + 2
        slots = torch.randperm(SLOTS)[: self.count * width].view(self.count, width)
        order = torch.randperm(self.count)
        self.table = torch.empty(self.count, width, dtype=torch.int32)
        self.table[order] = slots.to(torch.int32)
        self.rows = order
        self.sink = torch.randn(self.heads) if case["sinks"] else None
        self.scale = 0.7
        self.starts = [sum(new_tokens[:request]) for request in range(self.count)]
        self.slots_of_new = [
            int(self.table[self.rows[request], self.prefixes[request] + place])
            for request in range(self.count)
            for place in range(new_tokens[request])
        ]

    def wanted(
        self, visible: dict[tuple[int, int], list[bool]] | None, causal: bool
    ) -> list[list[list[float]]]:
        """visible: (request, new token) -> which new tokens it sees; None: those up to itself, or all if not
        causal."""
        out = []
        for request in range(self.count):
            for own in range(self.new_tokens[request]):
                heads = []
                for head in range(self.heads):
                    group = head // (self.heads // self.kv_heads)
                    keys, values = [], []
                    for position in range(self.lengths[request]):
                        new = position - self.prefixes[request]
                        if new >= 0:
                            seen = visible[request, own][new] if visible else (not causal or new <= own)
                        else:
                            seen = True
                        if self.window and position <= self.prefixes[request] + own - self.window:
                            seen = False
                        if not seen:
                            continue
                        if new >= 0:
                            place = self.starts[request] + new
                            keys.append(self.key[place, group].tolist())
                            values.append(self.value[place, group].tolist())
                        else:
                            slot = int(self.table[self.rows[request], position])
                            keys.append((self.k_buffer[slot, group] * self.k_scale).tolist())
                            values.append((self.v_buffer[slot, group] * self.v_scale).tolist())
                    sink = None if self.sink is None else float(self.sink[head])
                    query = self.query[self.starts[request] + own, head].tolist()
                    heads.append(definitions.attend(query, keys, values, self.scale, self.cap, sink))
                out.append(heads)
        return out


@given(attention_cases())
def test_decode_attention(case: dict[str, object]) -> None:
    # The new key and value pass through the buffers, so their scale applies to them too.
    case = {**case, "k_scale": 1.0, "v_scale": 1.0}
    a = Attention(case, [1] * len(case["prefixes"]))
    wanted = a.wanted(None, causal=True)
    output = torch.full((a.total, a.heads, a.value_size), torch.nan)
    k_buffer, v_buffer = a.k_buffer.clone(), a.v_buffer.clone()
    scratch = torch.zeros(a.count, a.heads, 8, a.value_size + 1)
    torch.ops.sgl_kernel.decode_attention_cpu(
        a.query, k_buffer, v_buffer, 1.0, 1.0, output, a.key, a.value, ints(a.slots_of_new), scratch, a.table,
        a.rows, ints(a.lengths), a.scale, a.cap, False, a.window, None, a.sink,
    )  # fmt: skip
    torch.testing.assert_close(output, torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    untouched = [slot for slot in range(SLOTS) if slot not in a.slots_of_new]
    assert torch.equal(k_buffer[a.slots_of_new], a.key)
    assert torch.equal(v_buffer[a.slots_of_new], a.value)
    assert torch.equal(k_buffer[untouched], a.k_buffer[untouched])
    assert torch.equal(v_buffer[untouched], a.v_buffer[untouched])


@given(attention_cases())
def test_decode_attention_over_stored_keys(case: dict[str, object]) -> None:
    """Without a new key and value everything comes from the buffers, scaled."""
    a = Attention(case, [1] * len(case["prefixes"]))
    k_buffer, v_buffer = a.k_buffer.clone(), a.v_buffer.clone()
    k_buffer[a.slots_of_new], v_buffer[a.slots_of_new] = a.key / a.k_scale, a.value / a.v_scale
    output = torch.full((a.total, a.heads, a.value_size), torch.nan)
    torch.ops.sgl_kernel.decode_attention_cpu(
        a.query, k_buffer, v_buffer, a.k_scale, a.v_scale, output, None, None, ints(a.slots_of_new),
        torch.zeros(1), a.table, a.rows, ints(a.lengths), a.scale, a.cap, False, a.window, None, a.sink,
    )  # fmt: skip
    torch.testing.assert_close(output, torch.tensor(a.wanted(None, causal=True)), rtol=1e-4, atol=1e-5)


@given(attention_cases(), st.sampled_from(["causal", "all", "tree"]), st.booleans(), st.data())
def test_extend_attention(case: dict[str, object], kind: str, stored: bool, data: st.DataObject) -> None:
    count = len(case["prefixes"])
    if kind == "tree":
        nodes = data.draw(st.integers(1, 4))
        new_tokens = [nodes] * count
        forest = [data.draw(trees(nodes)) for _ in range(count)]
        visible = {
            (request, node): [other in forest[request].path(node) for other in range(nodes)]
            for request in range(count)
            for node in range(nodes)
        }
        mask = torch.tensor(
            [visible[request, node] for request in range(count) for node in range(nodes)]
        ).flatten()
    else:
        new_tokens = [data.draw(st.integers(1, 4)) for _ in range(count)]
        visible, mask = None, None
    a = Attention(case, new_tokens)
    k_buffer, v_buffer = a.k_buffer.clone(), a.v_buffer.clone()
    if stored:
        k_buffer[a.slots_of_new], v_buffer[a.slots_of_new] = a.key / a.k_scale, a.value / a.v_scale
    output = torch.full((a.total, a.heads, a.value_size), torch.nan)
    torch.ops.sgl_kernel.extend_attention_cpu(
        a.query, None if stored else a.key, None if stored else a.value, output, k_buffer, v_buffer,
        a.k_scale, a.v_scale, a.table, a.rows, ints(a.lengths), ints(new_tokens, torch.int32),
        ints(a.starts, torch.int32), max(new_tokens), a.scale, a.cap, False, a.window, None, a.sink, mask,
        kind != "all",
    )  # fmt: skip
    wanted = a.wanted(visible, causal=kind != "all")
    torch.testing.assert_close(output, torch.tensor(wanted), rtol=1e-4, atol=1e-5)


def test_attention_refuses_what_it_cannot_do() -> None:
    one = torch.zeros(1, 1, 2)
    row = ints([0])
    with pytest.raises(NotImplementedError, match="cross attention"):
        torch.ops.sgl_kernel.decode_attention_cpu(
            one, one, one, 1.0, 1.0, one.clone(), None, None, row, one, ints([[0]], torch.int32), row,
            ints([1]), 1.0, 0.0, True, 0, None, None,
        )  # fmt: skip


def test_bfloat16_is_computed_in_float32() -> None:
    """Scores of several hundred, as the drafter's: in bfloat16 the difference that decides would be lost."""
    key = torch.tensor([[[16.0, 16.0]], [[16.0, 15.9]]]).to(torch.bfloat16)
    value = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).to(torch.bfloat16)
    query = torch.tensor([[[16.0, 16.0]]]).to(torch.bfloat16)
    output = torch.zeros(1, 1, 2, dtype=torch.bfloat16)
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, key.clone(), value.clone(), 1.0, 1.0, output, None, None, ints([0]), torch.zeros(1),
        ints([[0, 1]], torch.int32), ints([0]), ints([2]), 1.0, 0.0, False, 0, None, None,
    )  # fmt: skip
    difference = float(16.0 * (key[0, 0, 1].float() - key[1, 0, 1].float()))
    assert output[0, 0, 1].item() == pytest.approx(1 / (1 + 2.718281828**difference), rel=1e-2)
