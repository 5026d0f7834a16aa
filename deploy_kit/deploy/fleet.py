"""Rolling a fleet from the command line: deploy, roll back, and say how every host does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy_kit.deploy.groups import check_groups
from deploy_kit.deploy.playbook import PlaybookRun, run_playbook
from deploy_kit.errors import DeployKitError, nearest_names
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
    try:
        done = subprocess.run(
            [str(program), "-i", str(inventory), "--list"],
            capture_output=True, text=True, errors="replace", check=False, env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise DeployKitError(
            "Ansible is not installed beside deploy-kit",
            file=program,
            found=error.strerror,
            remedy="make dev, or pip install -r requirements/ops.txt into this environment",
            exit_code=ExitCode.FAILURE,
        ) from error
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
    telling = re.compile(
        r"parsing failed|vault|decrypt|expected|not valid|unknown|requires a|recursive dependency",
        re.IGNORECASE,
    )
    said = [line for line in lines if telling.search(line)]
    told = re.sub(
        r"^\[[A-Z]+\]: (Failed to parse inventory with '\w+' plugin: )?",
        "",
        (said or lines or ["no word why"])[0],
    )
    # Ansible names its own classes where a reader knows int, str, list.
    return re.sub(
        r"""["']?<class '(?:[\w.]+\.)?(?:_AnsibleTagged)?(\w+)'>["']?""", lambda at: at[1].lower(), told
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
    """Raise when the inventory's groups are not what can be deployed to (`check_groups`), or when the limit
    names nothing, or what is not there. `fleet_only`: the playbook is for fleets only."""
    check_groups(groups, inventory, fleet_only=fleet_only)
    hosts = groups.get("all", [])
    named = [one for one in groups if one not in ("all", "ungrouped")]
    for name in limit_names(limit):
        if re.search(r"[*?~\[\]/]", name) or name in groups or name in hosts:
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


def absolute_limit(limit: str | None) -> str | None:
    """Return the limit with the files that it names ("@FILE") as absolute paths: Ansible runs elsewhere."""
    if limit is None or "@" not in limit:
        return limit
    return re.sub(r"(?:(?<=^)|(?<=[,:]))(\s*)@([^,:]+)", lambda at: f"{at[1]}@{Path(at[2]).resolve()}", limit)


def limit_names(limit: str | None) -> list[str]:
    """Return the names and patterns in a limit, those in its files too; raise when it has none: for Ansible
    an empty limit is no limit, so that the whole fleet would be meant."""
    if limit is None:
        return []
    names: list[str] = []
    for word in (part.strip() for part in re.split(r"[,:]", limit)):
        if not word.startswith("@"):
            names += [word.lstrip("!&")] if word.lstrip("!&") else []
            continue
        try:
            lines = Path(word[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DeployKitError(
                "the file of the limit cannot be read",
                file=word[1:] or "@",
                key="--limit",
                found=getattr(error, "strerror", None) or "not text",
                allowed="@FILE with one host or group a line",
                exit_code=ExitCode.INPUT,
            ) from error
        names += [line.strip().lstrip("!&") for line in lines if line.strip()]
    if not names:
        raise DeployKitError(
            "the limit names no host",
            key="--limit",
            found=repr(limit),
            allowed="hosts or groups of the inventory",
            remedy="leave --limit out for the whole fleet",
            exit_code=ExitCode.INPUT,
        )
    return names


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
    limit_names(limit)
    limit = absolute_limit(limit)
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
