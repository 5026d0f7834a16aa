"""Which cause an exception's text and place name.

The rules are tables (rules_*.py), in this order: the first that fits wins, so special texts stand before the
general ones that contain them. `{name}` in an explanation is filled from the pattern's named groups.
"""

# ruff: noqa: E501  (texts and patterns read better unbroken)
from __future__ import annotations

import re

from deploy_kit.startup.cause_table import CAUSES, Cause
from deploy_kit.startup.rule import Finding, Place, Rule, given_name, named_groups
from deploy_kit.startup.rules_files import RULES as FILES
from deploy_kit.startup.rules_flags import RULES as FLAGS
from deploy_kit.startup.rules_kernels import RULES as KERNELS
from deploy_kit.startup.rules_ranks import RULES as RANKS

__all__ = ["CAUSES", "Cause", "Finding", "Place", "classify", "without_advice"]

_RULES: tuple[Rule, ...] = (*KERNELS, *RANKS, *FILES, *FLAGS)

_ADVICE = re.compile(r"\n?(?:Possible (?:solutions|suggestions):|Fail when using backend:).*", re.DOTALL)
_WRAPPER = re.compile(r"^(?:\w+: )?Capture [\w -]*?(?:CUDA|cuda|CPU)? ?(?:graph|CG [\w ]+)? ?failed: ")
_NEVER_ALONE = re.compile(
    r"Rank \d+ scheduler died|Initialization failed\. Please see the error messages above|SystemExit|KeyboardInterrupt"
    r"|^(?:\w+\.)*EOFError\Z"
)
_WHERE = {
    "oom-load": "while loading weights",
    "oom-kv": "while the KV pool was allocated",
    "oom-capture": "at CUDA graph capture",
    "oom-serving": "while serving",
}


def classify(text: str, place: Place) -> Finding | None:
    """Given an exception's text ("Type: message") and its place, return the cause; None when no rule fits.

    The advice that SGLang appends to a failed capture is not read: it says memory whatever the cause.
    """
    text = without_advice(text)[:8_000]
    if _NEVER_ALONE.search(text):
        return None
    for rule in _RULES:
        if rule.where is not None and not rule.where.search(place.frames):
            continue
        match = rule.pattern.search(text)
        if match is None:
            continue
        cause = rule.cause if isinstance(rule.cause, str) else rule.cause(place, match)
        if (
            cause == "nccl-p2p"
            and _WRAPPER.match(text) is None
            and not re.search(
                r"nccl|ipc|peer|custom_all_reduce|p2p|cuMulticast|NVLS", text + place.frames, re.IGNORECASE
            )
        ):
            continue
        return Finding(cause, _words(rule.text, cause, match, text, place), _facts(match, text))
    return None


def without_advice(text: str) -> str:
    """Return an exception's text without the advice that SGLang appends to a failed capture."""
    return _ADVICE.sub("", text).strip()


def _words(template: str, cause: str, match: re.Match[str], text: str, place: Place) -> str:
    groups = named_groups(match)
    first = _WRAPPER.sub("", text.strip()).split("\n")[0][:300]
    port = groups.get("port")
    unknown = groups.get("architectures") or "(not named)"
    values = {
        "first": first,
        "where": _WHERE.get(cause, "")
        + (f" (at {place.percent:.0f} %)" if cause == "oom-load" and place.percent is not None else ""),
        "path": groups.get("path") or given_name(text),
        "draft": ", the drafter's" if cause == "drafter-mismatch" else "",
        "elsewhere": "" if place.percent is None else f" while the load stood at {place.percent:.0f} %",
        "who": "the draft config's"
        if place.drafting or place.speculative
        else "the config's (target or draft)",
        "port_text": (
            f"internal rendezvous port {port} in use (not the HTTP port)"
            if cause == "rendezvous-port-taken" and port
            else first
        ),
        "model_type": groups.get("model_type") or unknown,
    }
    words = template.format_map(_Words({**{k: str(v) for k, v in groups.items() if v is not None}, **values}))
    return f"at graph capture {words}" if _WRAPPER.match(text) and "captur" not in words else words


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"({key} not named)"


_OOM = re.compile(
    r"Tried to allocate (?P<tried>[\d.]+ \w+)\. GPU (?P<gpu>\d+)\b"
    r"(?: has a total capac\w+ of (?P<total>[\d.]+ \w+)(?: of which (?P<free>[\d.]+ \w+) is free)?)?"
)


def _facts(match: re.Match[str], text: str) -> dict[str, int | float | str | bool]:
    facts: dict[str, int | float | str | bool] = {
        name: int(value) if value.isdecimal() else value
        for name, value in named_groups(match).items()
        if name != "name"
    }
    oom = _OOM.search(text)
    if oom is not None:
        # A paste may be cut after any of them.
        facts |= {"gpu": int(oom["gpu"]), "tried": oom["tried"]}
        facts |= {f"gpu_{name}": oom[name] for name in ("total", "free") if oom[name] is not None}
    port = re.search(r"port: (\d+)", text)
    if port is not None:
        facts["port"] = int(port.group(1))
    return facts
