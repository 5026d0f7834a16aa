"""The plan itself: everything that decides how an engine runs, and an id that is a hash of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Mount:
    """A host folder the engine's container sees."""

    source: str
    target: str
    read_only: bool = True


def without_listening(argv: Sequence[str]) -> tuple[str, ...]:
    """Given an engine's argv, return it without the flags that say where it listens.

    >>> without_listening(["python3", "--host", "0.0.0.0", "--port", "30000", "--tp-size", "8"])
    ('python3', '--tp-size', '8')
    """
    listening = {"--host", "--port"}
    return tuple(
        word
        for before, word in zip(("", *argv), argv, strict=False)
        if word not in listening and before not in listening
    )


@dataclass(frozen=True)
class Plan:
    """One resolved way to serve.

    `argv` starts with the engine's program; the API key is never in it. `environment` is what `serve` adds
    to its own. `cpuset` is in cpuset(7) form, or None for all CPUs.
    """

    profile: str
    stack: str
    model: str
    host: str
    levers: tuple[str, ...]
    drafter: str | None
    rehearsal: bool
    served_model_name: str
    image: str
    port: int
    gpus: int
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    required_paths: tuple[tuple[str, str], ...]
    cpuset: str | None
    versions: tuple[tuple[str, str], ...]
    known_accept_length: float | None = None

    @property
    def plan_id(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the plan's content.

        Where the engine listens is left out: a plan has one id, seen from outside a container (loopback) or
        from inside (all of its addresses), and on every port.
        """
        content = asdict(self)
        del content["port"]
        content["argv"] = without_listening(self.argv)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--json`, its id first."""
        content = asdict(self)
        content["environment"] = dict(self.environment)
        content["required_paths"] = dict(self.required_paths)
        content["versions"] = dict(self.versions)
        return {"plan_id": self.plan_id, **content}
