"""The CPU operators written out as loops over single numbers: what the stand-in's tests compare with."""

# ruff: noqa: PERF401  (spelled out on purpose)

import math
from dataclasses import dataclass


def assign_extend(rows: list[int], table: list[list[int]], starts: list[int], ends: list[int]) -> list[int]:
    found = []
    for row, start, end in zip(rows, starts, ends, strict=True):
        for column in range(start, end):
            found.append(table[row][column])
    return found


def assign_table(
    rows: list[int], table: list[list[int]], starts: list[int], ends: list[int], slots: list[int]
) -> list[list[int]]:
    written = [list(row) for row in table]
    taken = 0
    for row, start, end in zip(rows, starts, ends, strict=True):
        for column in range(start, end):
            written[row][column] = slots[taken]
            taken += 1
    return written


def draft_table(
    rows: list[int], table: list[list[int]], lengths: list[int], topk: int, steps: int
) -> list[list[int]]:
    """Only the columns that are read: the sequence and the branch's own drafts."""
    out = []
    for row, length in zip(rows, lengths, strict=True):
        for branch in range(topk):
            line = []
            for column in range(length):
                line.append(table[row][column])
            for step in range(steps):
                line.append(table[row][length + branch * steps + step])
            out.append(line)
    return out


@dataclass
class Tree:
    """A tree of draft tokens: parents[i] is node i's parent (None for the root, node 0)."""

    parents: list[int | None]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        above = self.parents[node]
        return [node] if above is None else [*self.path(above), node]

    def children(self, node: int) -> list[int]:
        return [child for child in range(len(self.parents)) if self.parents[child] == node]

    def first_child(self, node: int) -> int:
        return min(self.children(node), default=-1)

    def next_sibling(self, node: int) -> int:
        above = self.parents[node]
        if above is None:
            return -1
        return min((other for other in self.children(above) if other > node), default=-1)


def accept_greedily(tree: Tree, tokens: list[int], predicted: list[int], limit: int) -> list[int]:
    """The accepted nodes, root first: follow the child that carries the predicted token; `limit` nodes at
    most."""
    accepted = [0]
    while len(accepted) < limit:
        fitting = [child for child in tree.children(accepted[-1]) if tokens[child] == predicted[accepted[-1]]]
        if not fitting:
            break
        accepted.append(min(fitting))
    return accepted


def attend(
    query: list[float],
    keys: list[list[float]],
    values: list[list[float]],
    scale: float,
    cap: float,
    sink: float | None,
) -> list[float]:
    """One head's output for one token: `keys` and `values` are those it sees."""
    scores = []
    for key in keys:
        score = 0.0
        for left, right in zip(query, key, strict=True):
            score += left * right
        score *= scale
        scores.append(cap * math.tanh(score / cap) if cap > 0 else score)
    highest = max([*scores, *([sink] if sink is not None else [])])
    weights = [math.exp(score - highest) for score in scores]
    total = math.fsum(weights) + (math.exp(sink - highest) if sink is not None else 0.0)
    return [
        math.fsum(weight * value[place] for weight, value in zip(weights, values, strict=True)) / total
        for place in range(len(values[0]))
    ]
