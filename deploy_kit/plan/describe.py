"""A plan for people to read."""

from __future__ import annotations

import shlex

from deploy_kit.plan.model import Plan


def describe(plan: Plan) -> str:
    """Given a plan, return it as text: what it is, then the command as it could be typed."""
    lines = [
        f"plan {plan.plan_id}" + ("   REHEARSAL: no GPUs, no real model" if plan.rehearsal else ""),
        f"  profile   {plan.profile}" + (f" (drafter {plan.drafter})" if plan.drafter else ""),
        f"  model     {plan.model}, served as {plan.served_model_name}",
        f"  host      {plan.host}" + (f", {plan.gpus} GPUs" if plan.gpus else ", no GPUs"),
        f"  levers    {', '.join(plan.levers) or 'none'}",
        f"  stack     {plan.stack}: " + ", ".join(f"{name} {version}" for name, version in plan.versions),
        f"  image     {plan.image}",
        f"  CPUs      {plan.cpuset or 'all'}",
        "  mounts    "
        + (", ".join(f"{mount.source} → {mount.target} (read-only)" for mount in plan.mounts) or "none"),
        "  environment",
        *(f"    {name}={value}" for name, value in plan.environment),
        "  command",
        *_wrapped(plan.argv),
    ]
    return "\n".join(lines)


def _wrapped(argv: tuple[str, ...]) -> list[str]:
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return ["    " + " ".join(words) + (" \\" if i < len(lines) - 1 else "") for i, words in enumerate(lines)]
