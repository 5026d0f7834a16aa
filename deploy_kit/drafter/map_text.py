"""What a paste says of d2t: values in a section of their own, printed by Python, or in a sentence."""

from __future__ import annotations

import re

from deploy_kit.drafter.description import MapFacts

_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?![\w.])")
_ELLIPSIS = re.compile(r"\.\.\.|…")
# Words whose number is no value of the map.
_OTHER_NUMBERS = re.compile(
    r"(?i)\b(min|max|minimum|maximum|first|last|len|length|dtype|int64|int32|i64|shape)\b\s*[=:]?\s*\d*"
)
# `d2t[:10] = [0, 1, …]`, `>>> d2t[-8:]` and the list on the next line, `d2t: tensor([…])`.
_PRINTED = re.compile(
    r"\bd2t[\"']?\]?(?P<part>\[[-:\d\s]*\])?(?:\.tolist\(\))?\)?\s*(?:=|:|->)?\s*"
    r"(?:(?:torch\.)?(?:tensor|array)\()?\s*\[(?P<list>[^\]]{1,20000})\]"
)
_PRINTED_END = re.compile(
    r"\bd2t[\"']?\]?\.(?P<end>min|max)\(\)(?:\.item\(\))?\)?\s*(?:=|:|->)*\s*(?:tensor\()?\s*(?P<value>-?\d{1,15})"
)
# Fewer printed numbers than this may be a shape.
_LEAST_PRINTED = 4
_COUNT = r"(\d[\d,]{0,12})"
_AGREEING = (
    re.compile(
        rf"(?i)\bagree\w*\s+(?:at|in|on)\s+(?:only\s+)?{_COUNT}\s*(?:of|/|out of)\s*(?:the\s+)?{_COUNT}"
    ),
    re.compile(
        rf"(?i)\b{_COUNT}\s*(?:of|/|out of)\s*(?:the\s+)?{_COUNT}\s+(?:[\w-]+\s+){{0,3}}?"
        r"(?:agree|match|coincide|are\s+(?:the\s+same|identical|equal))"
    ),
)


def map_of_section(body: str, *, last_only: bool) -> MapFacts | None:
    """Return what a section that holds d2t's values says; `last_only`: its title says these are the last
    ones."""
    ends = map_ends(body)
    before, *after = _ELLIPSIS.split(_OTHER_NUMBERS.sub(" ", body), maxsplit=1)
    first = _numbers(before)
    last = _numbers(after[0]) if after else ()
    if last_only:
        first, last = (), first
    if not first and not last:
        return ends
    return MapFacts(
        first=first,
        last=last,
        minimum=ends.minimum if ends else None,
        maximum=ends.maximum if ends else None,
    )


def map_ends(text: str) -> MapFacts | None:
    """Return the smallest and largest value where words say them (`min 0 max 163839`), or None."""
    low = re.search(r"(?i)\bmin(?:imum)?\b\s*[=:]?\s*(-?\d{1,15})", text)
    high = re.search(r"(?i)\bmax(?:imum)?\b\s*[=:]?\s*(-?\d{1,15})", text)
    if low is None and high is None:
        return None
    return MapFacts(minimum=int(low.group(1)) if low else None, maximum=int(high.group(1)) if high else None)


def printed_map(text: str) -> MapFacts | None:
    """Return d2t's values as a Python session or script printed them anywhere in the text, or None."""
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    for found in _PRINTED.finditer(text):
        before, *after = _ELLIPSIS.split(found["list"], maxsplit=1)
        values = _numbers(before)
        if len(values) < _LEAST_PRINTED:
            continue
        if (found["part"] or "").replace(" ", "").startswith("[-"):
            last = last or values
        else:
            first = first or values
            last = last or (_numbers(after[0]) if after else ())
    ends = {found["end"]: int(found["value"]) for found in _PRINTED_END.finditer(text)}
    if not first and not last and not ends:
        return None
    return MapFacts(first=first, last=last, minimum=ends.get("min"), maximum=ends.get("max"))


def agreement(text: str) -> tuple[int, int] | None:
    """Return (positions that agree, positions) where a text says in how many two vocabularies agree."""
    if not re.search(r"(?i)d2t|vocab", text):
        return None
    for pattern in _AGREEING:
        found = pattern.search(text)
        if found is not None:
            same, size = (int(number.replace(",", "")) for number in found.groups())
            if 0 <= same <= size and size > 0:
                return same, size
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(text))
