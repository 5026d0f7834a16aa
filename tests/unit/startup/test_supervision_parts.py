"""The pure parts under the supervisor: activity, secrets, bounded buffers, process facts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from deploy_kit.runtime.activity import ActivityMeter
from deploy_kit.runtime.postmortem import host_facts, remove_secrets
from deploy_kit.runtime.process_facts import GroupFacts, count_memory_kills, look_at_group
from deploy_kit.runtime.relay import Chunks
from deploy_kit.runtime.voice import Voice


def group(*, cpu: float = 0.0, resident: int = 1 << 30, read: int = 0, stopped: bool = False) -> GroupFacts:
    return GroupFacts(3, cpu, resident, read, ((7, "sglang::schedul"),) if stopped else (), frozenset({7}))


def test_spinning_is_not_progress() -> None:
    meter = ActivityMeter(0.0)
    for second in range(0, 400, 2):
        quiet = meter.take(float(second), log_bytes=10, progress=0.5, group=group(cpu=second * 8.0))
    assert quiet.seconds > 390
    assert quiet.idle_seconds < 5
    assert quiet.spinning
    assert any("spinning" in check for check in quiet.checks)


def test_reading_a_warm_cache_is_progress() -> None:
    meter = ActivityMeter(0.0)
    for second in range(0, 100, 2):
        quiet = meter.take(float(second), log_bytes=10, progress=0.5, group=group(read=second << 24))
    assert quiet.seconds < 3


def test_idle_and_stopped() -> None:
    meter = ActivityMeter(0.0)
    meter.take(0.0, log_bytes=10, progress=-1.0, group=group())
    quiet = meter.take(130.0, log_bytes=10, progress=-1.0, group=group(stopped=True))
    assert (quiet.idle_seconds, quiet.stopped) == (130.0, ((7, "sglang::schedul"),))
    assert not quiet.spinning
    quiet = meter.take(131.0, log_bytes=11, progress=-1.0, group=group())
    assert quiet.seconds == 0


def test_secrets_are_removed_everywhere() -> None:
    content = {
        "env": {
            "HF_TOKEN": "hf_AAAAAAAAAAAA",
            "NCCL_ALGO": "Ring",
            "DEPLOY_KIT_API_KEY_FILE": "/run/secrets/api_key",
        },
        "lines": [
            "key=k-0123456789abcdef end",
            "Authorization: Bearer abc.def",
            "api_key='sk-12345678901234567890'",
            "Decode batch, #running-req: 3, #token: 11179, token usage: 0.08",
            "token: 12345678-abcd",
        ],
        "url": "http://user:pass@host/x",
        "number": 3,
    }
    text = str(clean := remove_secrets(content, "k-0123456789abcdef"))
    for secret in ("hf_AAAA", "k-0123456789abcdef", "abc.def", "sk-1234", ":pass@", "12345678-abcd"):
        assert secret not in text
    assert clean["env"]["NCCL_ALGO"] == "Ring"
    assert clean["env"]["DEPLOY_KIT_API_KEY_FILE"] == "/run/secrets/api_key"
    assert clean["number"] == 3
    assert "#token: 11179, token usage" in text


def test_a_full_buffer_drops_and_counts() -> None:
    chunks = Chunks(limit_bytes=10)
    chunks.put(b"12345")
    chunks.put(b"6789")
    chunks.put(b"too much")
    assert chunks.take() == (b"123456789", 8)
    chunks.put(b"again")
    assert chunks.take() == (b"again", 0)
    chunks.close()
    assert chunks.take() is None


def test_a_voice_never_waits() -> None:
    reading, writing = os.pipe()
    try:
        voice = Voice(writing)
        begun = time.monotonic()
        for _ in range(300):
            voice("x" * 1_000)  # far more than the pipe holds
        voice.finish(0.2)
        assert time.monotonic() - begun < 5
        assert os.read(reading, 200).startswith(b"deploy-kit: xxx")
    finally:
        os.close(reading)
        os.close(writing)


def test_our_own_group() -> None:
    facts = look_at_group(os.getpgid(0))
    assert facts.processes >= 1
    assert facts.resident_bytes > 0


def test_a_scheduler_that_ended_unseen_is_found() -> None:
    """It was never looked at while it lived, and its launcher has not waited for it."""
    program = (
        "import ctypes, os, time\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    ctypes.CDLL(None).prctl(15, b'sglang::scheduler_TP0', 0, 0, 0)\n"
        "    os._exit(9)\n"
        "print(pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert launcher.stdout is not None
    try:
        scheduler = int(launcher.stdout.readline())
        deadline = time.monotonic() + 10
        while not (facts := look_at_group(launcher.pid)).dead_schedulers:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert (facts.dead_schedulers, facts.schedulers) == (frozenset({scheduler}), frozenset())
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def test_memory_kills_are_read(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    assert count_memory_kills(tmp_path, own=tmp_path / "none") == 3
    assert count_memory_kills(tmp_path / "nowhere", own=tmp_path / "none") is None


def test_memory_kills_are_counted_where_the_cgroup_s_path_is_the_host_s(tmp_path: Path) -> None:
    """Version 1, in a container without a cgroup namespace: the mount is the container's own already."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    own = tmp_path / "cgroup"
    own.write_text("5:devices:/docker/abc\n4:memory:/docker/abc\n")
    assert count_memory_kills(tmp_path, own=own) == 2


def test_host_facts_name_what_they_cannot_read() -> None:
    assert {"kernel", "memory_bytes", "shm_bytes", "driver", "gpus"} <= set(host_facts())
