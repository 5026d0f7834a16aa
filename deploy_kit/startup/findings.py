"""Every candidate for the cause of an end: failures that were seen, and hints that count only if it ended."""

from __future__ import annotations

import re

from deploy_kit.startup.blocks import Failure
from deploy_kit.startup.causes import CAUSES, Finding, Place, classify, without_advice
from deploy_kit.startup.lines_of_ends import DIED
from deploy_kit.startup.run import RING_CHARACTERS, Run

# Priority, order, finding, failure, evidence.
Candidate = tuple[int, int, Finding, Failure | None, tuple[str, ...]]


def find_causes(run: Run) -> list[Candidate]:
    """Every candidate as (priority, order, finding, failure, evidence): 0 a cause, 1 an unknown
    exception, 2 a symptom of something elsewhere, 3 a handled exception, -1 a GPU that is gone."""
    found: list[Candidate] = []
    definite = bool(run.deaths) or run.ended_code is not None
    for failure in run.failures:
        raised = failure.raised
        if raised is None:
            continue
        if failure.header.startswith("\0"):
            _order, finding, evidence = run.hints[failure.header[1:]]
            found.append((0, failure.order, finding, failure, (evidence,)))
            continue
        handled = failure.fatal is False
        if handled or (failure.fatal is None and failure.ready_before and not definite):
            continue
        named = _name(run, failure)
        if named is None:
            continue
        priority = 2 if (named.id in CAUSES and CAUSES[named.id].secondary) else 0
        if named.id in ("unknown", "assertion"):
            priority = 1
        if failure.fatal is None and failure.ready_before:
            priority += 2
        found.append((priority, failure.order, named, failure, _evidence(failure)))
    for key, (order, finding, text) in run.hints.items():
        if key in ("numa", "native", "xid", "nccl-timeout") and not any(
            item[0] < 2 and key == "numa" for item in found
        ):
            weight = 0
            if finding.id == "gpu-lost":
                weight = -1  # a GPU that is gone fails every later call: the kernel knows it best
            elif finding.id == "cuda-fault" or key in ("native", "nccl-timeout"):
                weight = 2 if any(item[0] == 0 for item in found) else 0
            found.append((weight, order, finding, None, (text,)))
    if not any(item[0] < 2 for item in found):
        ended = Finding("detokenizer-died", "the detokenizer process ended")
        found.extend((2, d.order, ended, None, (d.text,)) for d in run.deaths if d.kind == "detokenizer")
    return found


def _name(run: Run, failure: Failure) -> Finding | None:
    place = Place(
        frames=failure.frame_text,
        phase=failure.phase,
        drafting=failure.second_load,
        ready=failure.ready_before,
        speculative=bool(run.args.get("speculative_draft_model_path"))
        or str(run.args.get("speculative_algorithm") or "None") not in ("None", "NGRAM"),
        quantized=run.args.get("quantization") not in (None, "None", "unquant"),
        draft_path=str(run.args["speculative_draft_model_path"])
        if run.args.get("speculative_draft_model_path")
        else None,
        rank=failure.rank,
        percent=failure.percent,
        header=failure.header,
    )
    last = failure.chain[-1]
    if last.type == "FatalPythonError":
        return _of_fault_handler(run, last.message, failure)
    if last.type == "usage":
        return classify(f"{last.message}", place) or Finding(
            "flag", f"SGLang refused the command line: {last.message[:300]}"
        )
    if last.type in (
        "KeyboardInterrupt",
        "SystemExit",
        "CancelledError",
        "asyncio.exceptions.CancelledError",
    ):
        return None
    if DIED.search(last.text) or last.message.startswith("Initialization failed. Please see"):
        return None
    best: Finding | None = None
    for raised in reversed(failure.chain):
        finding = classify(raised.text, place)
        if finding is not None and not CAUSES[finding.id].secondary:
            best = finding
            break
        best = best or finding
    if best is not None and best.id in ("nccl-system", "nccl-cuda", "nccl-internal", "nccl-usage"):
        best = _from_nccl_warnings(run, best, place)
    if best is None and failure.header.startswith("Initialization failed. warmup"):
        best = Finding("warmup-failed", f"the server's own warm-up failed: {last.text.splitlines()[0][:300]}")
    if best is None:
        first = last.text.splitlines()[0][:300]
        rank = "" if failure.rank is None else f" in rank TP{failure.rank}"
        when = {"starting": "init"}.get(failure.phase, failure.phase)
        if last.type.endswith("AssertionError"):
            return Finding("assertion", f"assertion failed{rank} during {when}: {first}")
        return Finding("unknown", f"{first}{rank} during {when}")
    return best


def _from_nccl_warnings(run: Run, finding: Finding, place: Place) -> Finding:
    for warning in run.warnings:
        inner = classify(warning.partition("WARN")[2].strip() or warning, place)
        if inner is not None and inner.id not in ("rank-lost", "nccl-internal"):
            return Finding(
                inner.id, f"{finding.text}; NCCL's own warning before it: {inner.text}", inner.facts
            )
    return finding


def _of_fault_handler(run: Run, what: str, failure: Failure) -> Finding:
    top = failure.frames[-1] if failure.frames else None
    at = "" if top is None else f" in {top[1]} ({top[0].rpartition('/')[2]})"
    loading = re.search(r"weight|load|safetensors", failure.frame_text) is not None
    if what.startswith("Bus error"):
        if loading:
            failure.phase = "loading"
        return Finding(
            "bus-error",
            f"SIGBUS{at} while reading mapped weights: a file is truncated, its storage failed under the"
            " mapping, or /dev/shm is full",
        )
    if what.startswith("Segmentation"):
        return Finding("segfault", f"SIGSEGV{at}: a native library crashed")
    if what.startswith("Aborted"):
        for raised in run.failures:
            if raised is not failure and raised.raised is not None and raised.fatal:
                return Finding("rank-lost", f"aborted{at} after another error")
        return Finding("unknown", f"aborted{at} (SIGABRT)")
    return Finding("unknown", f"fatal interpreter error{at}: {what[:200]}")


def _evidence(failure: Failure) -> tuple[str, ...]:
    raised = failure.raised
    lines = []
    if failure.header and not failure.header.startswith("\0"):
        tag = "" if failure.rank is None else f"[TP{failure.rank}] "
        lines.append(f"{tag}{failure.header}")
    if failure.frames:
        file, function = failure.frames[-1]
        lines.append(f'File "{file}", in {function}')
    if raised is not None:
        lines.extend(without_advice(raised.text).splitlines()[:3])
    return tuple(line[:RING_CHARACTERS] for line in lines)
