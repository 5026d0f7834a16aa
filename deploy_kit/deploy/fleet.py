"""Rolling a fleet from the command line: deploy, roll back, and say how every host does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy_kit.deploy.playbook import PlaybookRun, run_playbook
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

OnEvent = Callable[[PlaybookRun, Mapping[str, Any]], None]


def check_inventory(inventory: Path | None) -> Path | None:
    """Return the inventory as an absolute path; raise when it is not there."""
    if inventory is not None and not inventory.exists():
        raise DeployKitError(
            "the inventory is not there",
            file=inventory,
            key="--inventory",
            remedy="ansible/inventories/ holds examples",
            exit_code=ExitCode.INPUT,
        )
    return None if inventory is None else inventory.resolve()


def run_over(
    checkout: Path,
    playbook: str,
    *,
    inventory: Path | None,
    variables: Mapping[str, Any] | None = None,
    limit: str | None = None,
    dry_run: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Run a playbook over an inventory; return what changed, by host, and each host's report."""
    run = run_playbook(
        checkout,
        playbook,
        inventory=check_inventory(inventory),
        variables=variables,
        limit=limit,
        check=dry_run,
        on_event=on_event,
    )
    if not run.hosts:
        raise DeployKitError(
            "no host of the inventory is meant",
            file=inventory,
            key="--limit" if limit else "--inventory",
            found=limit or "an inventory without hosts for this playbook",
            allowed="hosts in the group engines (and gateway), or this machine",
            exit_code=ExitCode.INPUT,
        )
    return {
        "dry_run": dry_run,
        "changed": run.changed,
        "changed_steps": run.changed_tasks,
        "hosts": run.hosts,
        "reports": run.reports,
        "remarks": run.remarks,
    }


def describe(answer: Mapping[str, Any]) -> list[str]:
    """Given what `run_over` returned, return the lines to show."""
    lines = [str(remark) for remark in answer["remarks"]] if answer["dry_run"] else []
    for name, counts in answer["hosts"].items():
        report = answer["reports"].get(name)
        text = f"{name}: {counts.get('changed', 0)} steps changed something"
        if report:
            label = "  REHEARSAL" if report.get("rehearsal") else ""
            text += f"; serves {report['model']} with {report['profile']}, plan {report['plan_id']}{label}"
            if report.get("previous"):
                text += f" (previous: {report['previous']})"
        lines.append(text)
    return lines


def describe_hosts(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Given the fleet's status by host, return the lines to show."""
    lines = []
    for name, one in sorted(hosts.items()):
        current = one.get("current") or {}
        word = (
            "ready"
            if one.get("ready")
            else f"not ready ({one.get('why_not') or one.get('error') or 'no word'})"
        )
        gateway = ", ".join(f"{host}: {status}" for host, status in (one.get("gateway") or {}).items())
        text = f"{name:<12} {word}"
        if current:
            text += f"; {current.get('profile')}, plan {current.get('plan_id')}, since {current.get('since')}"
        if gateway:
            text += f"; gateway {gateway}"
        lines.append(text)
        progress = one.get("in_progress")
        if progress:
            lines.append(f"{'':<12} in progress: {progress['release']['release']}, {progress['phase']}")
        last = one.get("last") or {}
        if last.get("outcome") not in (None, "committed"):
            why = str(last.get("failure") or "").splitlines() or [""]
            lines.append(f"{'':<12} last change: {last['release']}, {last['outcome']} ({why[0]})")
    return lines
