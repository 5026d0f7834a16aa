"""The main job on this machine: check what can be checked cheaply, run the playbook, return its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy_kit.configs.catalog import Catalog
from deploy_kit.deploy.checkout import DEFAULT_PORTS, service_of
from deploy_kit.deploy.compose import read_status
from deploy_kit.deploy.machine import (
    docker_answers,
    docker_root,
    free_bytes,
    listeners,
    refuse_full_disk,
    refuse_taken_ports,
    refuse_without_engine,
)
from deploy_kit.deploy.playbook import PlaybookRun, run_playbook
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime.preflight import count_gpus


@dataclass(frozen=True)
class Wish:
    """What the user asked for; None and empty follow the machine."""

    profile: str = "eagle3"
    host: str | None = None
    model: str | None = None
    stack: str | None = None
    levers: tuple[str, ...] = ()
    rehearsal: bool | None = None
    port: int | None = None
    prometheus_port: int | None = None
    monitoring: str | None = None

    def variables(self) -> dict[str, Any]:
        """Return Ansible's extra variables; only what was asked for, so that inventories can say the rest."""
        service = service_of(self.profile)
        variables: dict[str, Any] = {"engine_profile": self.profile}
        asked = {
            "engine_host": self.host,
            "engine_model": self.model,
            "engine_stack": self.stack,
            "engine_levers": list(self.levers),
            "monitoring_prometheus_port": self.prometheus_port,
            "monitoring_level": self.monitoring,
        }
        variables |= {name: value for name, value in asked.items() if value}
        if self.rehearsal is not None:
            variables["engine_rehearsal"] = str(self.rehearsal).lower()
        if self.port is not None:
            ports = {name: port for name, port in DEFAULT_PORTS.items() if name != "prometheus"}
            variables["engine_ports"] = {**ports, service: self.port}
        return variables


def choose_host(wish: Wish, *, gpus: int) -> str | None:
    """Given the wish and how many GPUs there are, return the host's name to plan for (None: the default).

    With GPUs a rehearsal is only what was asked for; without, it is what is left. Raises NO_GPU."""
    if wish.host == "rehearsal" or wish.rehearsal:
        return "rehearsal"
    if gpus == 0 and (wish.rehearsal is False or wish.host is not None):
        raise DeployKitError(
            "a GPU plan on a machine without GPUs",
            key="--host" if wish.host is not None else "--no-rehearsal",
            found=f"no /dev/nvidia*, host {wish.host or 'not given'}",
            allowed="a machine with GPUs, or a rehearsal",
            remedy="leave --host and --no-rehearsal out to rehearse here",
            exit_code=ExitCode.NO_GPU,
        )
    return "rehearsal" if gpus == 0 else wish.host


def check(wish: Wish, checkout: Path) -> Plan:
    """Return the plan that the wish resolves to on this machine, or raise the first thing in its way."""
    service = service_of(wish.profile)
    plan = resolve(
        Catalog.find(checkout / "configs"),
        wish.profile,
        host=choose_host(wish, gpus=count_gpus()),
        stack=wish.stack,
        model=wish.model,
        levers=wish.levers,
    )
    answers = docker_answers()
    refuse_without_engine(answers=answers, root=os.geteuid() == 0)
    there = read_status() if answers else []
    running = {one.service for one in there if one.state == "running"}
    wanted = {
        service: wish.port or DEFAULT_PORTS[service],
        "prometheus": wish.prometheus_port or DEFAULT_PORTS["prometheus"],
    }
    refuse_taken_ports(listeners(port for name, port in wanted.items() if name not in running))
    if not there:  # a first deployment, so images will be built
        folder = docker_root()
        refuse_full_disk(folder, free_bytes=free_bytes(folder))
    return plan


def bring_up(
    wish: Wish,
    checkout: Path,
    *,
    dry_run: bool = False,
    on_event: Callable[[PlaybookRun, Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run the playbook against this machine; return its report, what changed and what was planned."""
    plan = check(wish, checkout)
    run = run_playbook(checkout, "deploy.yml", variables=wish.variables(), check=dry_run, on_event=on_event)
    return {
        "dry_run": dry_run,
        "plan_id": plan.plan_id,
        "rehearsal": plan.rehearsal,
        "changed": run.changed,
        "changed_steps": run.changed_tasks,
        "report": next(iter(run.reports.values()), None),
    }


def describe_report(answer: Mapping[str, Any]) -> Sequence[str]:
    """Given what `bring_up` returned, return the lines to show."""
    report = answer.get("report")
    if report is None:
        return [f"dry run: {answer['changed']} steps would change something, and nothing was changed"]
    lines = []
    if report["rehearsal"]:
        lines.append("REHEARSAL: the real SGLang on its CPU back end with tiny constructed models.")
        lines.append("           No number from here says anything about a GPU.")
    accept = report.get("accept_length")
    known = report.get("known_accept_length")
    measured = "none: this profile does not speculate" if not accept else f"{float(accept):.2f}"
    lines += [
        f"served         {report['model']}, profile {report['profile']}, plan {report['plan_id']}",
        f"engine         {report['url']}",
        f"API key        in {report['api_key_file']}",
        f"Prometheus     {report['prometheus']}",
        *(
            f"{name:<14} {report[key]}"
            for name, key in (("Alertmanager", "alertmanager"), ("Grafana", "grafana"))
            if report.get(key)
        ),
        *(f"left out       {text}" for text in report.get("monitoring_left_out") or []),
        f"receipts       {report.get('receipts', '')}  (deploy-kit bench … --receipts)",
        f"completion     {report['completion_tokens']} tokens: {str(report['completion'])[:60]!r}",
        f"accept length  {measured}"
        + (f" (constructed to be {float(known):.2f})" if known and accept else ""),
        f"changed        {answer['changed']} steps",
        "next           docker compose ps | deploy-kit status | deploy-kit logs | make down",
    ]
    return lines
