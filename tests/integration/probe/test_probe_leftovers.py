"""What a rank has started ends with it, in whatever process group it is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from deploy_kit.probe.group import _kill_sessions


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_compilers_jobs_end_although_they_have_groups_of_their_own() -> None:
    # As ninja does it: each job in a process group of its own, all in the session of the rank.
    rank = subprocess.Popen(
        ["bash", "-c", "set -m; sleep 300 & echo $!; sleep 300 & echo $!; wait"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert rank.stdout is not None
    jobs = [int(rank.stdout.readline()), int(rank.stdout.readline())]
    other = subprocess.Popen(["sleep", "300"])
    try:
        os.killpg(rank.pid, signal.SIGKILL)
        assert all(alive(job) for job in jobs), "this is what has to be mended"
        _kill_sessions({rank.pid})
        deadline = time.monotonic() + 10
        while any(alive(job) for job in jobs) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(alive(job) for job in jobs)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        rank.wait()
