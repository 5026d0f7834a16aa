"""The groups of an inventory, judged before any host is touched: a fleet's boxes, gateway and monitoring, or
single machines. `python -m deploy_kit.deploy.groups` is how ansible/judge.yml asks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

GROUPS = ("engines", "gateway", "monitoring")  # of a fleet's inventory
_ALWAYS = ("all", "ungrouped")


def misspelt(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Given groups and their hosts, return each group that looks like a misspelt one of ours, with the one
    meant. A part of the known group (`engines_rack_1` inside `engines`) and a parent of it are none."""
    known = {host for name in GROUPS for host in groups.get(name, ())}
    found: dict[str, str] = {}
    for name, members in groups.items():
        if name in GROUPS or name in _ALWAYS:
            continue
        near = get_close_matches(name, GROUPS, n=1, cutoff=0.75)
        if not near:
            continue
        hosts, meant = set(members), set(groups.get(near[0], ()))
        part = bool(meant) and hosts <= meant
        parent = bool(meant) and hosts >= meant and hosts <= known
        if not part and not parent:
            found[name] = near[0]
    return found


def check_groups(groups: Mapping[str, Sequence[str]], inventory: str | Path, *, fleet_only: bool) -> None:
    """Raise when an inventory's groups are not a fleet's (or, unless `fleet_only`, single machines'): a name
    that looks like a misspelt one of ours, a fleet's host in none of ours, no host, no box."""
    hosts = list(groups.get("all", ()))
    named = [one for one in groups if one not in _ALWAYS]
    counted = f"groups {', '.join(named) or 'none'}, {len(hosts)} hosts"
    wrong = misspelt(groups)
    if wrong:
        raise DeployKitError(
            "a group of the inventory looks misspelt",
            file=inventory,
            key=", ".join(wrong),
            found=counted,
            allowed="the group engines, the groups gateway and monitoring, and "
            "other names for groups that hold only hosts of these",
            remedy=" ".join(f"is {name} meant to be {meant}?" for name, meant in wrong.items()),
            exit_code=ExitCode.INPUT,
        )
    if not groups.get("engines"):
        others = [name for name in GROUPS if groups.get(name)]
        if others or fleet_only or not hosts:
            raise DeployKitError(
                f"the fleet has no box: {', '.join(others)} but no host in engines"
                if others
                else "no host of the inventory is meant",
                file=inventory,
                key="engines",
                found=f"{counted}, none of them in engines",
                allowed="hosts in the group engines (and gateway, monitoring)"
                + ("" if fleet_only else ", or hosts in none of these, each by itself"),
                exit_code=ExitCode.INPUT,
            )
        return
    known = {host for name in GROUPS for host in groups.get(name, ())}
    strays = [host for host in hosts if host not in known]
    if strays:
        where = {host: [name for name in named if host in groups[name]] for host in strays}
        raise DeployKitError(
            "a host of the fleet is in none of its groups",
            file=inventory,
            key=", ".join(strays),
            found="; ".join(f"{host} in {', '.join(names) or 'no group'}" for host, names in where.items()),
            allowed=f"every host in {', '.join(GROUPS[:-1])} or {GROUPS[-1]} (directly or by a child group)",
            remedy="correct the group's name, or keep machines that are no part of the fleet in an inventory"
            " of their own (docs/fleet.md)",
            exit_code=ExitCode.INPUT,
        )


def main() -> int:
    """Judge `{groups, inventory, fleet_only}`, JSON on stdin; return the exit code."""
    try:
        wish = json.loads(sys.stdin.read())
        check_groups(wish["groups"], str(wish["inventory"]), fleet_only=bool(wish["fleet_only"]))
    except DeployKitError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sys.stderr.write(f"the JSON on stdin is not an inventory's groups: {error}\n")
        return int(ExitCode.USAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
