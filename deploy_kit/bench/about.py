"""What is being measured, read from the plan that the server runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy_kit.bench.run import About
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

_ABSOLUTE = re.compile(r"^(--?[\w-]+=|)([/~].*)$", re.DOTALL)


class _PlanFile(BaseModel):
    # What `deploy-kit plan … --json` prints; of its keys only these are used here.
    model_config = ConfigDict(extra="ignore")

    plan_id: str
    profile: str
    stack: str
    host: str
    levers: list[str]
    rehearsal: bool
    gpus: int
    versions: dict[str, str]


def about_plan(path: Path, arguments: tuple[str, ...] = ()) -> About:
    """Given the file of a plan as `deploy-kit plan PROFILE --json` prints it, return what is measured."""
    text = read_text(path, what="plan file", limit_bytes=4 * 1024 * 1024)
    remedy = "write it with: deploy-kit plan PROFILE --json"
    try:
        plan = _PlanFile.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DeployKitError(
            f"not a plan: {first['msg']}",
            file=path,
            key=".".join(str(step) for step in first["loc"]),
            remedy=remedy,
            exit_code=ExitCode.INPUT,
        ) from error
    except (ValueError, RecursionError) as error:
        raise DeployKitError(
            f"not a plan: {error}", file=path, remedy=remedy, exit_code=ExitCode.INPUT
        ) from error
    return About(
        profile=plan.profile,
        levers=tuple(plan.levers),
        plan_id=plan.plan_id,
        host=plan.host,
        host_facts={"gpus": plan.gpus},
        versions={**plan.versions, "stack": plan.stack},
        rehearsal=plan.rehearsal,
        arguments=arguments,
    )


def without_folders(arguments: Sequence[str]) -> tuple[str, ...]:
    """Given a command line's words, return them with only the names of files given by absolute paths: a
    receipt is shared, and where this machine keeps its files is nobody's business.

    >>> without_folders(["http://127.0.0.1:30000", "--plan", "/home/me/plan.json", "--prompts=/data/p.jsonl"])
    ('http://127.0.0.1:30000', '--plan', 'plan.json', '--prompts=p.jsonl')
    """
    return tuple(
        _ABSOLUTE.sub(lambda match: match[1] + (Path(match[2]).name or "/"), word) for word in arguments
    )


def read_key(path: Path | None) -> str | None:
    """Return the API key in the file (one line), or None without a file. It is never printed or stored."""
    if path is None:
        return None
    key = read_text(path, what="API key file", limit_bytes=4096).strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise DeployKitError(
            "this is not an API key",
            file=path,
            found=f"{len(key)} characters",
            allowed="one line of printable ASCII characters without spaces",
            exit_code=ExitCode.CONFIG,
        )
    return key
