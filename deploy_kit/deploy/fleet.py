"""Rolling a fleet from the command line: deploy, roll back, and say how every host does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from deploy_kit.deploy.playbook import PlaybookRun, run_playbook
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode

GROUPS = ("engines", "gateway", "monitoring")  # of a fleet's inventory
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


def read_groups(checkout: Path, inventory: Path, vault_password_file: Path | None) -> dict[str, list[str]]:
    """Return an inventory's groups and the hosts in each, "all" too; raise when Ansible cannot read it."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(checkout / "ansible/ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    if vault_password_file is not None:
        environment["ANSIBLE_VAULT_PASSWORD_FILE"] = str(vault_password_file)
    program = Path(sys.executable).parent / "ansible-inventory"
    done = subprocess.run(
        [str(program), "-i", str(inventory), "--list"],
        capture_output=True, text=True, errors="replace", check=False, env=environment,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        raise DeployKitError(
            "the inventory cannot be read",
            file=inventory,
            found=why_not_read(done.stderr),
            remedy="ansible-inventory -i FILE --list says the same; docs/fleet.md shows an inventory",
            exit_code=ExitCode.INPUT,
        )
    return groups_of(json.loads(done.stdout))


def why_not_read(stderr: str) -> str:
    """Given what ansible-inventory said on stderr, return the lines that say what is wrong.

    >>> why_not_read("[WARNING]: x\\n<<< caused by >>>\\nYAML parsing failed: y\\nOrigin: z")
    'YAML parsing failed: y'
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = re.compile(r"parsing failed|vault|decrypt|expected|not valid|unknown", re.IGNORECASE)
    said = [line for line in lines if telling.search(line)]
    return re.sub(
        r"^\[[A-Z]+\]: (Failed to parse inventory with '\w+' plugin: )?",
        "",
        (said or lines or ["no word why"])[0],
    )


def groups_of(listing: Mapping[str, Any]) -> dict[str, list[str]]:
    """Given `ansible-inventory --list`, return every group's hosts, those of its children too."""

    def hosts(name: str) -> set[str]:
        group = listing.get(name) or {}
        inner = [hosts(child) for child in group.get("children", [])]
        return set(group.get("hosts", [])).union(*inner)

    names = {name for name in listing if name != "_meta"}
    names |= {child for name in names for child in (listing[name] or {}).get("children", [])}
    return {name: sorted(hosts(name)) for name in sorted(names)}


def check_names(
    groups: Mapping[str, Sequence[str]], inventory: Path, *, limit: str | None, fleet_only: bool
) -> None:
    """Raise when the inventory has no host that is meant, when a group's name looks like a misspelt one of
    ours, or when the limit names what is not there. `fleet_only`: the playbook is for fleets only."""
    hosts = groups.get("all", [])
    named = [one for one in groups if one not in ("all", "ungrouped")]
    if not groups.get("engines"):
        near = [
            one for one in groups if one not in GROUPS and get_close_matches(one, GROUPS, n=1, cutoff=0.75)
        ]
        if fleet_only or not hosts or near:
            raise DeployKitError(
                "no host of the inventory is meant",
                file=inventory,
                key="engines",
                found=f"groups {', '.join(named) or 'none'}, {len(hosts)} hosts, none of them in engines",
                allowed="hosts in the group engines (and gateway, monitoring)"
                + ("" if fleet_only else ", or hosts in no group, each by itself"),
                remedy=f"is {near[0]} meant to be {get_close_matches(near[0], GROUPS, n=1)[0]}?"
                if near
                else None,
                exit_code=ExitCode.INPUT,
            )
    for word in re.split(r"[,:]", limit or ""):
        name = word.strip().lstrip("!&")
        if not name or re.search(r"[*?~@\[\]/]", name) or name in groups or name in hosts:
            continue
        near = nearest_names(name, [*hosts, *groups])
        raise DeployKitError(
            "the limit names nothing of the inventory",
            file=inventory,
            key="--limit",
            found=name,
            allowed=", ".join([*hosts, *named]),
            remedy=f"did you mean {' or '.join(near)}?" if near else None,
            exit_code=ExitCode.INPUT,
        )


def check_vault(file: Path | None) -> Path | None:
    """Return the file with Vault's password as an absolute path; raise when it is not there."""
    if file is not None and not file.is_file():
        raise DeployKitError(
            "the file with Vault's password is not there",
            file=file,
            key="--vault-password-file",
            remedy="name the file that ansible-vault was given, or a program that prints the password",
            exit_code=ExitCode.INPUT,
        )
    return None if file is None else file.resolve()


def run_over(
    checkout: Path,
    playbook: str,
    *,
    inventory: Path | None,
    variables: Mapping[str, Any] | None = None,
    limit: str | None = None,
    dry_run: bool = False,
    vault_password_file: Path | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Run a playbook over an inventory; return what changed, by host, and each host's report."""
    inventory, vault_password_file = check_inventory(inventory), check_vault(vault_password_file)
    if inventory is not None:
        groups = read_groups(checkout, inventory, vault_password_file)
        check_names(groups, inventory, limit=limit, fleet_only=playbook != "deploy.yml")
    run = run_playbook(
        checkout,
        playbook,
        inventory=inventory,
        variables=variables,
        limit=limit,
        check=dry_run,
        vault_password_file=vault_password_file,
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
