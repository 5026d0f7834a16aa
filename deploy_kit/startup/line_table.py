"""Which reader a line belongs to: by its first word, or by a word that is rare."""

from __future__ import annotations

import re
from collections.abc import Callable

from deploy_kit.startup import lines_of_ends as ends
from deploy_kit.startup import lines_of_native as native
from deploy_kit.startup import lines_of_phases as phases
from deploy_kit.startup import lines_of_serving as serving
from deploy_kit.startup import lines_of_system as system
from deploy_kit.startup.journal import Journal
from deploy_kit.startup.lines import Line, parse_line
from deploy_kit.startup.progress import read_bar

HEAD_CHARACTERS = 600
_ODD = re.compile(
    r"Xid|[Kk]illed process|exited with code|: error: |atchdog timeout|attempting to bind|oom-kill"
    r"|No module named|not found|Autotuning process|flashinfer\.jit: "
    r"|fallen off the bus|\d Killed\b"
    r"|what\(\):|scheduler died during|batch_size\(\)="
)


def read_line(journal: Journal, line: Line) -> None:
    """Given a line that belongs to no traceback, write down what it says."""
    text = line.text
    if "%" in text[:240]:
        bar = read_bar(text)
        if bar is not None:
            phases.read_progress(journal, bar[0], line)
            if bar[1].startswith("["):
                read_line(journal, parse_line(bar[1]))
            return
    if line.indented:
        if journal.abort is not None and "what():" in text[:12]:
            native.read_what(journal, text)
        return
    reader = _READERS.get(text.partition(" ")[0])
    if reader is not None:
        reader(journal, line)
        return
    if text.startswith(("max_total", "[E", "[W", "[F")):
        native.read_native(journal, line) if text[0] == "[" else phases.read_tokens(journal, line)
        return
    head = text[:HEAD_CHARACTERS]
    if " NCCL " in head[:120] or head.startswith("NCCL "):
        if "WARN" in head:
            journal.run.warnings.append(head)
        journal.run.nccl_seen = True
        return
    if _ODD.search(head):
        _read_odd(journal, line, head)


def _read_sglang(journal: Journal, line: Line) -> None:
    if not phases.read_nccl_version(journal, line):
        _read_if_odd(journal, line)


def _read_error(journal: Journal, line: Line) -> None:
    if not ends.read_bind(journal, line, line.text):
        _read_if_odd(journal, line)


def _read_scheduler(journal: Journal, line: Line) -> None:
    ends.read_terminated(journal, line)
    _read_if_odd(journal, line)


def _read_if_odd(journal: Journal, line: Line) -> None:
    head = line.text[:HEAD_CHARACTERS]
    if _ODD.search(head):
        _read_odd(journal, line, head)


def _read_odd(journal: Journal, line: Line, head: str) -> None:
    """A line with a rare word: the first reader that takes it; each demands the whole wording."""
    run = journal.run
    if ends.read_watchdog(journal, line, head):
        return
    if "atchdog" in head and not line.headed and "collective" in head:
        native.read_native(journal, line)
        return
    if ends.read_batch_size(journal, head):
        return
    if journal.abort is not None and "what():" in head:
        native.read_what(journal, head)
        return
    if (
        system.read_xid(journal, line, head)
        or system.read_kernel_kill(journal, line, head)
        or ends.read_container_exit(journal, line, head)
        or ends.read_shell_killed(journal, line, head)
        or ends.read_usage(journal, line, head)
        or (not line.headed and ends.read_bind(journal, line, head))
    ):
        return
    if "Autotuning process" in head or "flashinfer.jit: " in head:
        run.compiling = not run.ready and "process ends" not in head
        return
    if system.read_numa(journal, line) or ends.read_launcher(journal, line, head):
        return
    if not line.headed and ends.DIED.search(head):
        ends.read_died(journal, Line(head, stream=line.stream))


_READERS: dict[str, Callable[[Journal, Line], object]] = {
    "Init": phases.read_init,
    "Load": phases.read_load,
    "KV": phases.read_kv,
    "Memory": phases.read_memory,
    "Capture": phases.read_capture,
    "Capturing": phases.read_capture,
    "Using": phases.read_using,
    "sglang": _read_sglang,
    "Entering": phases.read_compile,
    "Try": phases.read_compile,
    "Engine": phases.read_engine,
    "The": serving.read_the,
    "INFO:": serving.read_info,
    "ERROR:": _read_error,
    "Decode": serving.read_decode,
    "Prefill": serving.read_prefill,
    "Received": ends.read_sigquit,
    "SIGQUIT": ends.read_sigquit,
    "SIGTERM": ends.read_sigterm,
    "Gracefully": ends.read_sigterm,
    "Signal": ends.read_sigterm,
    "Subprocess": ends.read_subprocess,
    "RuntimeError:": ends.read_died,
    "Rank": ends.read_died,
    "Scheduler": _read_scheduler,
    "Killed": ends.read_killed,
    "Health": serving.read_health,
    "Setup": phases.read_setup,
    "Fatal": native.read_fatal_python,
    "terminate": native.read_terminate,
    "Some": phases.read_some_weights,
    "---": phases.read_silence,
    "libnuma:": system.read_numa,
    "setting": system.read_numa,
    "numactl:": system.read_numa,
    "set_mempolicy:": system.read_numa,
    "mbind:": system.read_numa,
    "sched_setaffinity:": system.read_numa,
}
