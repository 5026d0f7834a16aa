"""The drafter's vocabulary: the head, the map d2t, the mask t2d, and the tokenizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from deploy_kit.drafter.description import UNKNOWN_DTYPE, Description, MapFacts, count, text_config
from deploy_kit.drafter.engine import LLAMA_EAGLE3
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Finding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Vocabulary sizes that differ by less than this share are one vocabulary, padded differently.
_PADDING_SHARE = 0.01
# Offsets of a real map repeat (runs of neighbouring tokens); this many strictly rising values are ids.
_RISING_ENOUGH = 8
_RISING_FOR_CERTAIN = 64
# Floating types of a d2t that was cast with the weights: ids up to 2**24 are whole in the first ones.
_EXACT_FLOATS, _ROUNDING_FLOATS = ("F32", "F64"), ("BF16", "F16")


def map_targets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the target ids that SGLang makes of d2t: offset + draft id."""
    import numpy as np

    return values + np.arange(values.shape[0], dtype=np.int64)


def check_vocabulary(known: Description, family: str) -> Iterator[Finding]:
    """Yield what is wrong or right with head, map and mask of an EAGLE-3 drafter."""
    config = known.config or {}
    yield from _draft_size_key(known, config, family)
    yield from _sizes(known, config)
    yield from _head(known, config)
    yield from _map(known, config)
    yield from _against_reference(known)
    yield from _tokenizers(known)


def _draft_size_key(known: Description, config: Mapping[str, Any], family: str) -> Iterator[Finding]:
    if family == LLAMA_EAGLE3 and "draft_vocab_size" not in config and known.config_complete:
        yield Finding(
            "draft-vocab-size",
            "reject",
            f"draft_vocab_size is not in config.json: {family} reads it without a default",
            kind=WILL_NOT_LOAD,
            error="AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size' (all "
            "versions read)",
            remedy='add "draft_vocab_size": the rows of lm_head, or null to borrow the target\'s head',
        )


def _sizes(known: Description, config: Mapping[str, Any]) -> Iterator[Finding]:
    own, target = count(config, "vocab_size"), count(text_config(known.target), "vocab_size")
    draft = count(config, "draft_vocab_size")
    if own is not None and draft is not None and draft > own:
        yield Finding(
            "vocabulary-size",
            "reject",
            f"draft_vocab_size {draft} is larger than vocab_size {own}",
            kind=WILL_NOT_ACCEPT,
            remedy="correct config.json: one of the two is of another model",
        )
    if own is None or target is None or own == target:
        return
    far = abs(own - target) > _PADDING_SHARE * target
    yield Finding(
        "vocabulary-size",
        "reject" if far else "warn",
        f"vocabulary of {own} tokens, the target has {target}: "
        + ("another tokenizer" if far else "padded differently, or another release of the tokenizer"),
        kind=WILL_NOT_ACCEPT,
        remedy="use a drafter made for this target"
        if far
        else "compare the tokenizers; above tensor parallel 1 the borrowed embedding is cut by the drafter's "
        "vocab_size, so set it to the target's",
    )


def _head(known: Description, config: Mapping[str, Any]) -> Iterator[Finding]:
    if known.tensors is None:
        return
    tied = bool(config.get("tie_word_embeddings"))
    draft, own = config.get("draft_vocab_size"), count(config, "vocab_size")
    head = next((t for t in known.tensors.values() if t.name.endswith("lm_head.weight")), None)
    target = text_config(known.target)
    if tied:
        yield from _tied(config, target, head is not None)
    elif head is None:
        if draft is not None:
            excerpt = not known.listing_complete
            yield Finding(
                "lm-head",
                "unknown" if excerpt else "reject",
                "lm_head missing while draft_vocab_size is set: the head stays randomly initialised, "
                "nothing is ever "
                "accepted (accept length 1.00) though the server starts",
                kind=WILL_NOT_ACCEPT,
                essential=True,
                remedy="remove draft_vocab_size (null) so that SGLang borrows the target's head, or add "
                "the tensor, or "
                "use a version that borrows it (none of those read does)"
                if own is None or draft == own
                else "add the trained lm_head tensor: a pruned head cannot be borrowed",
            )
        elif "draft_vocab_size" in config or known.config_complete:
            yield Finding(
                "lm-head", "ok", "no lm_head and draft_vocab_size null: SGLang uses the target's head"
            )
    elif draft is None and "draft_vocab_size" in config:
        yield Finding(
            "lm-head",
            "warn",
            "the drafter's own lm_head is not used: with draft_vocab_size null SGLang takes the "
            "target's head",
            kind=WILL_NOT_ACCEPT,
            remedy=f"set draft_vocab_size to {head.shape[0] if head.shape else '?'} to use the trained head",
        )
    elif type(draft) is int and head.shape and head.shape[0] != draft:
        yield Finding(
            "lm-head",
            "reject",
            f"lm_head has {head.shape[0]} rows, draft_vocab_size is {draft}",
            kind=WILL_NOT_LOAD,
            error="AssertionError: self.org_vocab_size=… loaded_weight.shape[output_dim]=… (all "
            "versions read)",
            remedy=f"set draft_vocab_size to {head.shape[0]} if the map d2t has that many entries too; "
            "otherwise "
            "head and config are of different drafters",
        )
    elif head is not None and type(draft) is int:
        yield Finding("lm-head", "ok", f"lm_head rows = draft_vocab_size ({draft})")


def _tied(config: Mapping[str, Any], target: Mapping[str, Any], has_head: bool) -> Iterator[Finding]:
    draft, own = count(config, "draft_vocab_size"), count(config, "vocab_size")
    if draft is not None and own is not None and draft != own:
        yield Finding(
            "tied-head",
            "reject",
            "tie_word_embeddings with a pruned vocabulary: the head becomes the target's embedding, "
            f"whose first {draft} "
            "rows are then read as draft tokens",
            kind=WILL_NOT_ACCEPT,
            remedy="set tie_word_embeddings to false and ship the trained lm_head",
        )
        return
    target_tied = target.get("tie_word_embeddings") if target else None
    own_head = " (the lm_head in the file is not read)" if has_head else ""
    if target_tied is True and not has_head:
        yield Finding(
            "tied-head",
            "ok",
            "tied head: SGLang uses the target's embedding, which is the target's head as well",
        )
        return
    yield Finding(
        "tied-head",
        "reject" if target_tied is False else "warn",
        "tie_word_embeddings: the head is the embedding, and SGLang replaces that by the target's embedding"
        + own_head
        + (
            ", while this target's head is another matrix: nothing that was trained is used as head"
            if target_tied is False
            else "; right only if the target ties its head too"
        ),
        kind=WILL_NOT_ACCEPT,
        remedy='set tie_word_embeddings to false; then "draft_vocab_size": null borrows the target\'s '
        "real head, or ship "
        "the trained lm_head",
    )


def _map(known: Description, config: Mapping[str, Any]) -> Iterator[Finding]:
    own = count(text_config(known.target), "vocab_size") or count(config, "vocab_size")
    draft = config.get("draft_vocab_size")
    tensors = known.tensors
    listed = next((t for t in (tensors or {}).values() if t.name == "d2t" or t.name.endswith(".d2t")), None)
    pruned = type(draft) is int and own is not None and draft < own
    if tensors is None and known.d2t is None:
        return
    if listed is None and known.d2t is None:
        if pruned:
            side = [
                name for name in known.other_files if name.endswith((".pt", ".pth", ".bin", ".npy", ".json"))
            ]
            side = [name for name in side if name not in ("config.json", "generation_config.json")]
            yield Finding(
                "d2t-missing",
                "reject" if known.listing_complete else "unknown",
                f"pruned vocabulary ({draft} of {own}) without d2t: draft ids are read as target ids, "
                "acceptance "
                "collapses silently",
                kind=WILL_NOT_ACCEPT,
                essential=True,
                remedy="export d2t into the weights (offsets: target id minus draft id)"
                + (f" from {', '.join(side)}, which the engine does not read" if side else "")
                + "; a token map (--speculative-token-map) does not help: EAGLE3 ignores it",
            )
        elif draft is not None and known.listing_complete:
            yield Finding("d2t", "ok", "full vocabulary: no d2t needed")
        return
    if listed is not None:
        yield from _listed_map(listed.dtype, listed.shape, draft, own)
    if draft is None and "draft_vocab_size" in config:
        yield Finding(
            "d2t",
            "reject",
            "d2t with draft_vocab_size null: the head is the target's, with one row a target token, and "
            "d2t is applied on "
            "top of it",
            kind=WILL_NOT_ACCEPT,
            remedy="set draft_vocab_size to the length of d2t and ship the pruned lm_head",
        )
        return
    if known.d2t is not None and own is not None:
        length = listed.shape[0] if listed is not None and listed.shape else draft
        yield from check_map_values(
            known.d2t, length if type(length) is int else None, own, pruned, known.t2d
        )
    elif pruned:
        yield Finding(
            "d2t-values", "unknown", "the values of d2t were not given: offsets, range and order are unknown"
        )


def _listed_map(dtype: str, shape: tuple[int, ...], draft: Any, own: int | None) -> Iterator[Finding]:
    if len(shape) != 1:
        yield Finding(
            "d2t-shape",
            "reject",
            f"d2t has shape {list(shape)}, one axis is needed",
            kind=WILL_NOT_LOAD,
            remedy="export it flat: one offset a draft token",
        )
        return
    if own is not None and type(draft) is int and shape[0] == own != draft:
        yield Finding(
            "d2t-length",
            "reject",
            f"d2t has {shape[0]} entries, one a target token: it looks like t2d or a map the other way "
            "round; "
            f"draft_vocab_size is {draft}",
            kind=WILL_NOT_ACCEPT,
            remedy="export d2t with one offset a draft token",
        )
    elif type(draft) is int and shape[0] != draft:
        yield Finding(
            "d2t-length",
            "reject",
            f"d2t has {shape[0]} entries, draft_vocab_size is {draft}: "
            + (
                "draft ids beyond its end have no target id"
                if shape[0] < draft
                else "head and map are of different drafters"
            ),
            kind=WILL_NOT_ACCEPT,
            error="index out of range (a device-side assert on a GPU) at the first such draft"
            if shape[0] < draft
            else "",
            remedy="take lm_head and d2t from the same export",
        )
    elif type(draft) is int:
        yield Finding("d2t-length", "ok", f"d2t length = draft_vocab_size ({draft})")
    if dtype not in ("I64", "I32", UNKNOWN_DTYPE):
        yield _map_type(dtype)


def _map_type(dtype: str) -> Finding:
    """SGLang adds d2t to the positions and puts the ids into one tensor with the target's own last token."""
    floating = dtype in _EXACT_FLOATS or dtype in _ROUNDING_FLOATS
    if dtype in _ROUNDING_FLOATS:
        why = (
            "token ids are rounded to that type, the target's own last token with them: most drafts are "
            "wrong, and so is the answer itself"
        )
    elif dtype in _EXACT_FLOATS:
        why = (
            "token ids become that type too: exact, and accepted on the CPU backend, but a GPU takes whole "
            "ids only"
        )
    else:
        why = "too small for token ids"
    return Finding(
        "d2t-type",
        "reject",
        f"d2t is stored as {dtype}: {why}",
        kind=WILL_NOT_ACCEPT,
        error="on a GPU the first verify stops: its kernel takes int64 ids only (read in 0.5.23)"
        if floating
        else "",
        remedy="export it as int64, without casting the checkpoint's integer buffers to the weights' type",
    )


def check_map_values(
    facts: MapFacts, length: int | None, vocabulary: int, pruned: bool, mask: NDArray[np.bool_] | None = None
) -> Iterator[Finding]:
    """Yield what d2t's values say, given its length and the target's vocabulary."""
    import numpy as np

    if facts.values is None:
        yield from _partial_map(facts, length, vocabulary, pruned)
        return
    values = facts.values
    if pruned and values.size > 1 and not values.any():
        yield Finding(
            "d2t-zeros",
            "reject",
            f"d2t is all zeros: draft ids would be the first {values.size} target ids, the look of a "
            "map that was never "
            "filled in",
            kind=WILL_NOT_ACCEPT,
            remedy="export the map that the training used",
        )
        return
    targets = map_targets(values)
    outside = int(np.count_nonzero((targets < 0) | (targets >= vocabulary)))
    rising = bool(values.size >= _RISING_ENOUGH and np.all(np.diff(values) > 0))
    ids_agree = mask is not None and outside_of(values, vocabulary) == 0 and _covers(mask, values)
    offsets_agree = mask is not None and outside == 0 and _covers(mask, targets)
    looks_absolute = rising and outside_of(values, vocabulary) == 0
    certain = outside > 0 or (mask is None and values.size >= _RISING_FOR_CERTAIN)
    if not offsets_agree and (ids_agree or (looks_absolute and certain)):
        yield _absolute()
        return
    if outside:
        worst = int(targets.max()) if int(targets.max()) >= vocabulary else int(targets.min())
        yield Finding(
            "d2t-range",
            "reject",
            f"d2t leads outside the target's vocabulary at {outside} of {values.size} positions (id "
            f"{worst}, allowed "
            f"0 to {vocabulary - 1})",
            kind=WILL_NOT_ACCEPT,
            error="index out of range in the embedding (a device-side assert on a GPU)",
            remedy="the map is of another vocabulary, or damaged: take it from a drafter of this target",
        )
        return
    duplicates = values.size - int(np.unique(targets).size)
    if duplicates:
        yield Finding(
            "d2t-duplicates",
            "reject" if duplicates > 0.01 * values.size else "warn",
            f"{duplicates} of {values.size} draft tokens stand for a target token that another one "
            "stands for already",
            kind=WILL_NOT_ACCEPT,
            remedy="the map is damaged or of another vocabulary: export it again",
        )
    if mask is not None:
        wanted, have = int(np.count_nonzero(mask)), np.unique(targets)
        inside = have[have < mask.size]
        agreeing = int(np.count_nonzero(mask[inside]))
        if agreeing != have.size or wanted != have.size:
            yield Finding(
                "t2d",
                "reject" if agreeing < 0.9 * have.size else "warn",
                f"t2d and d2t disagree: d2t names {have.size} tokens, t2d marks {wanted}, {agreeing} "
                "are the same (SGLang "
                "reads d2t only)",
                kind=WILL_NOT_ACCEPT,
                remedy="one of the two is of another vocabulary: export both again",
            )
        else:
            yield Finding("t2d", "ok", f"t2d marks exactly the {wanted} tokens of d2t")
    if not duplicates and values.size > 1 and bool(np.any(np.diff(targets) <= 0)):
        yield Finding(
            "d2t-order",
            "warn",
            "d2t does not rise: allowed, if lm_head's rows are in the same order; unusual for an export",
            kind=WILL_NOT_ACCEPT,
            remedy="make sure that lm_head and d2t come from the same export",
        )
    elif not duplicates:
        yield Finding(
            "d2t-values",
            "ok",
            f"d2t: {values.size} offsets, target ids {int(targets[0])} to {int(targets[-1])}, rising",
        )


def _partial_map(facts: MapFacts, length: int | None, vocabulary: int, pruned: bool) -> Iterator[Finding]:
    first, last = facts.first, facts.last
    rising = len(first) >= _RISING_ENOUGH and all(b > a for a, b in pairwise(first))
    maximum = max((*first, *last, *([] if facts.maximum is None else [facts.maximum])), default=None)
    minimum = min((*first, *last, *([] if facts.minimum is None else [facts.minimum])), default=None)
    too_far = None
    if length is not None:
        ends = [value + length - len(last) + place for place, value in enumerate(last)]
        too_far = next((end for end in ends if end >= vocabulary), None)
        if too_far is None and facts.maximum is not None and facts.maximum > vocabulary - length:
            # Sorted offsets end at most at vocabulary - length.
            too_far = facts.maximum + length - 1
    all_inside = maximum is not None and maximum < vocabulary
    if all_inside and (rising or too_far is not None) and not (minimum is not None and minimum < 0):
        yield _absolute()
    elif (maximum is not None and maximum >= vocabulary) or too_far is not None:
        yield Finding(
            "d2t-range",
            "reject",
            f"d2t leads outside the target's vocabulary ({maximum} as an offset, {vocabulary} tokens)",
            kind=WILL_NOT_ACCEPT,
            error="index out of range in the embedding (a device-side assert on a GPU)",
            remedy="the map is of another vocabulary, or damaged: take it from a drafter of this target",
        )
    elif minimum is not None and any(value + place < 0 for place, value in enumerate(first)):
        yield Finding(
            "d2t-range",
            "reject",
            "d2t leads to negative token ids",
            kind=WILL_NOT_ACCEPT,
            remedy="the map is damaged: export it again",
        )
    elif pruned and facts.minimum == 0 and facts.maximum == 0:
        yield Finding(
            "d2t-zeros",
            "reject",
            "d2t is all zeros: draft ids would be the first target ids, the look of a map that was "
            "never filled in",
            kind=WILL_NOT_ACCEPT,
            remedy="export the map that the training used",
        )
    elif len({value + place for place, value in enumerate(first)}) < len(first):
        yield Finding(
            "d2t-duplicates",
            "warn",
            "among the listed values of d2t two draft tokens stand for one target token",
            kind=WILL_NOT_ACCEPT,
            remedy="check the whole map: give the folder instead of a listing",
        )
    else:
        yield Finding(
            "d2t-values", "unknown", "only some values of d2t were given; those are possible offsets"
        )


def _absolute() -> Finding:
    return Finding(
        "d2t-absolute",
        "reject",
        "d2t holds absolute target ids, SGLang reads offsets (target id = d2t[i] + i): every draft "
        "token becomes another "
        "one",
        kind=WILL_NOT_ACCEPT,
        error="index out of range in the embedding (a device-side assert on a GPU) where id + position "
        "passes the vocabulary",
        remedy="subtract the position from each entry: d2t[i] = target id - i",
    )


def outside_of(ids: NDArray[np.int64], vocabulary: int) -> int:
    """Return how many ids are not token ids of a vocabulary of that size."""
    import numpy as np

    return int(np.count_nonzero((ids < 0) | (ids >= vocabulary)))


def _covers(mask: NDArray[np.bool_], ids: NDArray[np.int64]) -> bool:
    import numpy as np

    if ids.size == 0 or int(ids.min()) < 0 or int(ids.max()) >= mask.size:
        return False
    return bool(np.count_nonzero(mask[ids]) >= 0.999 * ids.size)


def _against_reference(known: Description) -> Iterator[Finding]:
    agreeing = known.agreement or _agreement(known.d2t, known.reference_d2t)
    if agreeing is None:
        return
    same, size = agreeing
    if same < size:
        yield Finding(
            "d2t-reference",
            "reject" if same < 0.9 * size else "warn",
            f"d2t agrees with the reference at {same} of {size} positions: the vocabulary of a sister model",
            kind=WILL_NOT_ACCEPT,
            remedy="use a drafter made for this target, or deploy-kit drafter remap",
        )


def _agreement(mine: MapFacts | None, other: MapFacts | None) -> tuple[int, int] | None:
    import numpy as np

    if mine is None or other is None:
        return None
    a = np.array(mine.first if mine.values is None else mine.values)
    b = np.array(other.first if other.values is None else other.values)
    size = min(a.size, b.size)
    return (int(np.count_nonzero(a[:size] == b[:size])), size) if size else None


def _tokenizers(known: Description) -> Iterator[Finding]:
    facts = known.tokenizers
    if facts is None:
        return
    if facts.drafter_hash == facts.target_hash:
        yield Finding("tokenizer", "ok", f"the tokenizers are the same ({facts.target_size} tokens)")
    elif facts.moved or (facts.only_drafter and not facts.added_only):
        yield Finding(
            "tokenizer",
            "reject"
            if facts.moved > 0.01 * facts.target_size or facts.only_drafter > 0.01 * facts.target_size
            else "warn",
            f"the drafter ships another tokenizer: {facts.moved} tokens have another id, "
            f"{facts.only_drafter} are not in "
            f"the target's, {facts.only_target} are not in the drafter's",
            kind=WILL_NOT_ACCEPT,
            remedy="SGLang uses the target's tokenizer; a drafter trained with another one names other "
            "tokens: use one "
            "made for this target",
        )
    else:
        yield Finding(
            "tokenizer",
            "warn",
            f"the tokenizers differ in added tokens only ({facts.only_drafter} of the drafter's, "
            f"{facts.only_target} of the "
            "target's)",
            kind=WILL_NOT_ACCEPT,
            remedy="special tokens (thinking, tools) will not be drafted where they differ",
        )
