"""Lines of native code: PyTorch's C++ side, std::terminate, the interpreter's fault handler."""

from __future__ import annotations

import re

from deploy_kit.startup.blocks import Failure, Raised
from deploy_kit.startup.causes import classify
from deploy_kit.startup.journal import Journal
from deploy_kit.startup.lines import Line
from deploy_kit.startup.rule import Finding, Place
from deploy_kit.startup.run import Death

_FATAL_PYTHON = re.compile(r"Fatal Python error: (?P<what>.+)")
_FAULT_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')


def read_native(journal: Journal, line: Line) -> None:
    """Lines of PyTorch's C++ side: `[E227 16:30:43.526 ProcessGroupNCCL.cpp:1785] …`."""
    text = line.text
    if text.startswith("[W"):
        return
    if "collective operation timeout" in text or "Timeout at NCCL work" in text:
        finding = classify(text[:1_500], Place())
        if finding is not None:
            operation = re.search(r"OpType=(\w+)", text)
            facts = dict(finding.facts)
            if operation is not None:
                facts["operation"] = operation.group(1)
                finding = Finding(
                    "nccl-timeout",
                    f"an {operation.group(1)} did not end in time: a rank did not join it",
                    facts,
                )
            journal.hint("nccl-timeout", finding, text)
            if "nccl-timeout-rank" not in journal.run.facts and line.rank is not None:
                journal.run.facts.setdefault("rank", line.rank)
            journal.run.watchdog = journal.run.watchdog or Death("nccl-watchdog", text[:400], journal.order)
    if "taking the entire process down" in text or "terminated with exception" in text:
        journal.death("nccl-abort", line, rank=line.rank)
        if "terminated with exception" in text:
            tail = text.partition("terminated with exception:")[2]
            finding = classify(tail[:1_500], Place(phase=journal.run.phase)) if tail else None
            if finding is not None:
                journal.hint("native", finding, text)


def read_terminate(journal: Journal, line: Line) -> None:
    """std::terminate: its what() follows."""
    if line.text.startswith("terminate called"):
        failure = Failure(line.text[:200], line.rank, line.stamp, True)
        name = re.search(r"instance of '([^']+)'", line.text)
        failure.chain.append(Raised(name.group(1) if name else "terminate", ""))
        journal.add(failure, line)
        journal.abort = failure


def read_what(journal: Journal, text: str) -> None:
    """What std::terminate was called for."""
    if journal.abort is not None:
        journal.abort.chain[-1].message = text.partition("what():")[2].strip()[:2_000]
        journal.abort = None


def read_fatal_python(journal: Journal, line: Line) -> None:
    """The interpreter's fault handler."""
    match = _FATAL_PYTHON.match(line.text)
    if match is None:
        return
    failure = Failure(line.text[:200], line.rank, line.stamp, True)
    failure.chain.append(Raised("FatalPythonError", match["what"]))
    journal.add(failure, line)
    journal.fault = failure
    journal.fault_current = False


def in_fault(journal: Journal, line: Line) -> bool:
    """Lines of faulthandler: only the thread marked Current counts."""
    text = line.text.strip()
    fault = journal.fault
    if fault is None:
        return False
    if text.startswith(("Current thread", "Thread 0x")):
        journal.fault_current = text.startswith("Current")
        if journal.fault_current:
            journal.run.facts["thread"] = "the one marked Current"
        return True
    frame = _FAULT_FRAME.match(text)
    if frame is not None:
        if journal.fault_current and len(fault.frames) < 24:
            fault.frames.insert(0, (frame["file"], frame["function"]))
        return True
    if text.startswith(("...", "<no Python frame>", "Extension modules", "Python runtime state")):
        return True
    if line.headed:
        return False
    journal.fault = None
    return False
