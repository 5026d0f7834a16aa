"""Lines by which the engine says that one of its processes ended, or is ending."""

from __future__ import annotations

import re

from deploy_kit.startup.journal import Journal
from deploy_kit.startup.lines import Line
from deploy_kit.startup.lines_of_system import read_kernel_kill
from deploy_kit.startup.rule import Finding
from deploy_kit.startup.run import read_fact

_WATCHDOG = re.compile(
    r"(?:(?P<who>[\w ]+?) )?[Ww]atchdog timeout \((?:self\.)?watchdog_timeout=(?P<timeout>[\d.]+)"
    r"(?:, (?:self\.)?soft=(?P<soft>True|False))?"
)
_BATCH_SIZE = re.compile(r"batch_size\(\)=(\d+)")
DIED = re.compile(r"Rank (\d+) scheduler died during initialization \(exit code: (-?\d+)\)")
_SUBPROCESS = re.compile(r"Subprocess (\S+) \(pid=(\d+)\) crashed with exit code (-?\d+)")
_CONTAINER_EXIT = re.compile(r"(?P<name>[\w.-]+) exited with code (?P<code>\d+)")
_SHELL_KILLED = re.compile(r"\S+: line \d+:\s+\d+ Killed\b")
_TERMINATED = re.compile(r"Scheduler or DataParallelController \d+ terminated with (?P<code>-?\d+)")
_ARGPARSE = re.compile(r"(?:[\w./-]+(?: \w+)?): error: (?P<message>.+)")
_BIND_FAILED = re.compile(
    r"(?:ERROR:\s+)?\[Errno (?P<errno>-?\d+)\] error while attempting to bind on address"
    r" \('(?P<host>[^']*)', (?P<port>\d+)"
)
_LAUNCHER = re.compile(
    r"\S*python[\d.]*: (?:No module named|can't open file|Error while finding)"
    r"|(?:\S*/)?(?:ba|da)?sh: .*not found"
)


def read_sigquit(journal: Journal, line: Line) -> None:
    """A child failed, and the launcher was told."""
    text = line.text
    if journal.run.draining or "sigquit" not in text.lower()[:40]:
        return
    if text.startswith("Received") and "child" not in text:
        return
    journal.death("sigquit", line)


def read_sigterm(journal: Journal, line: Line) -> None:
    """The engine was asked to stop."""
    text = line.text
    if text.startswith(("SIGTERM received", "Gracefully exiting", "Signal SIGTERM received")):
        journal.run.draining = True


def read_subprocess(journal: Journal, line: Line) -> None:
    """A child ended, with which exit code."""
    match = _SUBPROCESS.match(line.text)
    if match is None or journal.run.draining:
        return
    rank = re.search(r"scheduler_?(\d+)", match.group(1))
    journal.death(
        "detokenizer" if "detoken" in match.group(1) else "subprocess",
        line,
        exit_code=int(match.group(3)),
        rank=None if rank is None else int(rank.group(1)),
    )


def read_died(journal: Journal, line: Line) -> None:
    """A scheduler died during its start."""
    match = DIED.search(line.text)
    if match is not None:
        journal.death("scheduler", line, exit_code=int(match.group(2)), rank=int(match.group(1)))
        return
    if line.text.startswith("RuntimeError: Initialization failed. Please see"):
        journal.death("init-failed", line)


def read_killed(journal: Journal, line: Line) -> None:
    """The shell's or the kernel's word for a killed process."""
    if journal.run.draining and line.text == "Killed":
        # SGLang's last act after it has drained: SIGKILL to its own process tree, itself included.
        journal.run.finished = True
    elif line.text == "Killed" or re.match(r"Killed\s+(?:python|sglang|numactl|deploy-kit)", line.text):
        journal.death("killed", line, exit_code=-9)
    elif line.text.startswith("Killed process"):
        read_kernel_kill(journal, line, line.text[:600])


def read_container_exit(journal: Journal, line: Line, head: str) -> bool:
    """Compose says that the container ended; return whether the line says so."""
    run = journal.run
    ended = _CONTAINER_EXIT.search(head)
    if ended is None or line.headed:
        return False
    code = int(ended["code"])
    run.facts["exit_code"] = code
    if code in (0, 143) or run.draining:
        run.finished = True
    else:
        journal.death(
            "container",
            line,
            exit_code=code - 256 if code > 192 else (128 - code if code > 128 else code),
        )
    return True


def read_shell_killed(journal: Journal, line: Line, head: str) -> bool:
    """The shell that started the engine says that it was killed; return whether the line says so."""
    if line.headed or _SHELL_KILLED.match(head) is None:
        return False
    journal.death("killed", line, exit_code=-9)
    return True


def read_terminated(journal: Journal, line: Line) -> None:
    """The launcher of another node: one of its schedulers ended, with which code."""
    match = _TERMINATED.match(line.text)
    if match is not None and match["code"] != "0" and not journal.run.draining:
        journal.death("scheduler", line, exit_code=int(match["code"]))


def read_usage(journal: Journal, line: Line, head: str) -> bool:
    """The argument parser refused the command line; return whether the line says so."""
    usage = _ARGPARSE.match(head)
    if usage is None or line.headed or journal.run.ready:
        return False
    journal.failure_of_line(line, "usage", usage["message"], None)
    return True


def read_launcher(journal: Journal, line: Line, head: str) -> bool:
    """The interpreter or the shell did not find the engine; return whether the line says so."""
    run = journal.run
    launcher = _LAUNCHER.match(head)
    if launcher is None or run.args or run.stages:
        return False
    journal.failure_of_line(
        line,
        "launcher",
        head[:300],
        Finding("library-mismatch", f"the engine's program is not in this image: {head[:200]}"),
    )
    return True


def read_bind(journal: Journal, line: Line, head: str) -> bool:
    """Uvicorn could not have the HTTP port; return whether the line says so."""
    match = _BIND_FAILED.search(head)
    if match is None:
        return False
    port, host = int(match["port"]), match["host"]
    if match["errno"] in ("99", "-2", "-3", "-5"):
        cause, words = "flag", f"the address {host} is none of this machine: {head[:200]}"
    elif match["errno"] == "13":
        cause, words = "permission", f"the port {port} may not be used by this user: {head[:200]}"
    else:
        cause, words = "port-taken", f"the HTTP port {port} on {host} is in use by another process"
    journal.failure_of_line(
        line,
        "OSError",
        f"HTTP port {port} on {host}: {words}",
        Finding(cause, words, {"port": port, "host": host}),
    )
    return True


def read_batch_size(journal: Journal, head: str) -> bool:
    """The scheduler's dump before its watchdog ends it; return whether the line is the batch's size."""
    size = _BATCH_SIZE.search(head)
    if size is not None:
        journal.run.facts["batch_size"] = int(size.group(1))
    return size is not None


def read_watchdog(journal: Journal, line: Line, head: str) -> bool:
    """One of the engine's watchdogs; return whether the line is its."""
    match = _WATCHDOG.match(head)
    if match is None:
        return False
    run = journal.run
    run.facts["timeout_s"] = read_fact(match["timeout"])
    soft = match["soft"] == "True"
    run.facts["soft"] = soft
    if soft:
        run.soft_watchdog = line.text[:300]
        return True
    if run.watchdog is None:
        run.watchdog = journal.death("watchdog", line, rank=line.rank)
    return True
