"""The post-mortem file: what ended the engine, of which plan, on what machine, its last words. No secrets."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy_kit.files import write_atomically
from deploy_kit.patterns import sieved
from deploy_kit.plan.model import Plan
from deploy_kit.runtime.process_facts import count_memory_kills
from deploy_kit.startup.run import Explanation

FILE_NAME = "post-mortem.json"
HIDDEN = "[secret]"
_SECRET_NAME = re.compile(r"(?i)key|token|secret|password|passwd|credential|authorization")
# Each begins with plain characters, and is tried only where one of its words stands: a line may be one word
# of many thousand characters.
_SECRETS_IN_TEXT = (
    sieved(r"(bearer\s+)\S+", re.IGNORECASE),
    sieved(
        r"((?:api[_-]?key|access[_-]?token|hf_token|token(?!\s*:\s*\d+(?:,|\s|$))|password|passwd|secret)['\"]?\s*[=:]\s*['\"]?)(?!None\b)[^'\",\s)}\]]{4,}",
        re.IGNORECASE,
    ),
    sieved(r"()\bhf_[A-Za-z0-9]{8,}"),
    sieved(r"()\bsk-[A-Za-z0-9_-]{16,}"),
    sieved(r"(://[^/\s:@]+:)[^@\s/]+(?=@)"),
)


def write_post_mortem(
    folder: Path,
    explanation: Explanation,
    plan: Plan,
    *,
    last_lines: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    phase_seconds: Mapping[str, float],
    engine_code: int | None,
    secret: str | None,
) -> Path:
    """Write the file into `folder` (over the one before) and return its path."""
    content: dict[str, Any] = {
        "schema_version": 1,
        "written_at_seconds": time.time(),
        "explanation": explanation.as_dict(),
        "engine_exit_code": engine_code,
        "phase_seconds": dict(phase_seconds),
        "plan": {**plan.as_dict(), "argv": list(plan.argv)},
        "environment": environment,
        "host": host_facts(),
        "last_lines": {key or "untagged": list(lines) for key, lines in last_lines.items()},
    }
    path = folder / FILE_NAME
    write_atomically(
        path, json.dumps(remove_secrets(content, secret), indent=2, ensure_ascii=False) + "\n", mode=0o640
    )
    return path


def remove_secrets(value: Any, secret: str | None) -> Any:
    """Return JSON values with the given secret, and whatever looks like one, replaced.

    >>> remove_secrets({"HF_TOKEN": "abc", "line": "Authorization: Bearer xyz"}, None)
    {'HF_TOKEN': '[secret]', 'line': 'Authorization: Bearer [secret]'}
    """
    if isinstance(value, Mapping):
        return {
            str(key): HIDDEN
            if _SECRET_NAME.search(str(key))
            and isinstance(item, str)
            and item
            and not str(key).endswith(("_id", "_file", "_FILE"))
            else remove_secrets(item, secret)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [remove_secrets(item, secret) for item in value]
    if isinstance(value, str):
        if secret:
            value = value.replace(secret, HIDDEN)
        small = value.lower()
        for shape in _SECRETS_IN_TEXT:
            if shape.may_fit(small):
                value = shape.pattern.sub(lambda match: (match.group(1) or "") + HIDDEN, value)
        return value
    return value


def host_facts() -> dict[str, Any]:
    """Return what of this machine a start depends on; None where it cannot be read."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": _meminfo("MemTotal"),
        "memory_available_bytes": _meminfo("MemAvailable"),
        "memory_limit_bytes": _cgroup_limit(),
        "memory_kills": count_memory_kills(),
        "shm_bytes": _size(Path("/dev/shm")),  # noqa: S108
        "gpus": len([p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit()]),
        "driver": _first_line(Path("/proc/driver/nvidia/version")),
    }


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _cgroup_limit() -> int | None:
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        text = _first_line(path)
        if text is not None and text.isdigit():
            return int(text)
    return None


def _size(path: Path) -> int | None:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
