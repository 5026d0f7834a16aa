"""Running a playbook through ansible-runner: its events as progress, its end as a result or an error."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

REPORT = "deploy_kit"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EXIT_CODE = re.compile(r"\(exit code (\d+)\)")


@dataclass
class PlaybookRun:
    """What has happened so far; filled from ansible-runner's events."""

    step: str = "starting"
    hosts: dict[str, dict[str, int]] = field(default_factory=dict)
    changed_tasks: list[str] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    failed_step: str | None = None
    failed_host: str | None = None
    message: str = ""

    @property
    def changed(self) -> int:
        """How many tasks changed something, over all hosts."""
        return sum(counts.get("changed", 0) for counts in self.hosts.values())

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event of ansible-runner (`{"event": name, "event_data": {…}}`)."""
        kind = str(event.get("event", ""))
        data = event.get("event_data") or {}
        task = readable_step(str(data.get("task") or ""))
        if kind == "playbook_on_task_start" and task:
            self.step = task
        elif kind in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            self.failed_step, self.failed_host = task or self.step, str(data.get("host") or "")
            self.message = failure_text(data.get("res") or {})
        elif kind == "runner_on_ok":
            result = data.get("res") or {}
            if result.get("changed"):
                self.changed_tasks.append(task)
            text = result.get("msg")
            if data.get("task_action") in ("debug", "ansible.builtin.debug") and isinstance(text, str):
                self.remarks.append(text)
        elif kind == "playbook_on_stats":
            self._take_stats(data)

    def _take_stats(self, data: Mapping[str, Any]) -> None:
        for counter in ("ok", "changed", "failures", "dark", "skipped", "rescued"):
            for host, count in (data.get(counter) or {}).items():
                self.hosts.setdefault(host, {})[counter] = int(count)
        reports = (data.get("artifact_data") or {}).get(REPORT)
        if isinstance(reports, dict):
            self.reports |= {
                str(host): report for host, report in reports.items() if isinstance(report, dict)
            }


def readable_step(task: str) -> str:
    """Given "role : Task name", return "Task name"; Ansible's own argument check is left as it is."""
    return task.rpartition(" : ")[2].strip()


def failure_text(result: Mapping[str, Any]) -> str:
    """Given a failed task's result, return its message and, for a command, its last lines."""
    parts = [str(result.get("msg") or "")]
    for key in ("stderr", "module_stderr", "stdout"):
        lines = str(result.get(key) or "").strip().splitlines()[-15:]
        if lines and lines[-1] not in parts[0]:
            parts.append("\n".join(lines))
            break
    if "deploy_kit" in str(result.get("cmd") or "") and result.get("rc"):
        parts.append(f"(exit code {result['rc']})")  # one of our own commands: its code is ours
    return _ESCAPES.sub("", "\n".join(part for part in parts if part)).strip() or "no word why"


def failure(run: PlaybookRun) -> DeployKitError:
    """Given a failed run, return the error: which step, its last lines, what to do, and the exit code the
    step names ("(exit code 12)")."""
    from deploy_kit.runtime.container_faults import explain_container_fault

    codes = [int(code) for code in _EXIT_CODE.findall(run.message)]
    known = {int(code) for code in ExitCode}
    code = ExitCode(codes[-1]) if codes and codes[-1] in known else ExitCode.DEPLOY_FAILED
    text = _EXIT_CODE.sub("", run.message).strip()
    fault = explain_container_fault(text) if code == ExitCode.DEPLOY_FAILED else None
    where = f" on {run.failed_host}" if run.failed_host not in (None, "", "localhost") else ""
    said = re.search(r"Remedy: (.+)", text)
    return DeployKitError(
        f"step failed{where}: {run.failed_step or run.step}" + (f": {fault.cause}" if fault else ""),
        found=text.replace("\n", "\n           "),
        remedy=fault.remedy
        if fault
        else (
            None if said else "put right what the lines say and run the same command again; it goes on there"
        ),
        exit_code=code,
    )


def run_playbook(
    checkout: Path,
    playbook: str,
    *,
    inventory: Path | None = None,
    variables: Mapping[str, Any] | None = None,
    limit: str | None = None,
    check: bool = False,
    vault_password_file: Path | None = None,
    on_event: Callable[[PlaybookRun, Mapping[str, Any]], None] | None = None,
) -> PlaybookRun:
    """Run `ansible/PLAYBOOK` of the checkout; return what happened, or raise what went wrong.

    Events reach `on_event` as they come. An interruption (Ctrl-C) ends the playbook and raises
    `KeyboardInterrupt`; running it again goes on where it stopped."""
    import ansible_runner

    run = PlaybookRun()

    def handle(event: dict[str, Any]) -> bool:
        run.take(event)
        if on_event is not None:
            on_event(run, event)
        return False  # keep no event files

    environment = {
        "ANSIBLE_CONFIG": str(checkout / "ansible/ansible.cfg"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "ANSIBLE_NOCOLOR": "1",
    }
    if vault_password_file is not None:
        environment["ANSIBLE_VAULT_PASSWORD_FILE"] = str(vault_password_file)
    with tempfile.TemporaryDirectory(prefix="deploy-kit-runner-") as private:
        result = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(checkout / "ansible"),
            playbook=str(checkout / "ansible" / playbook),
            inventory=str(inventory or checkout / "ansible/inventories/local"),
            extravars=dict(variables or {}),
            limit=limit,
            cmdline="--check" if check else None,
            envvars=environment,
            event_handler=handle,
            quiet=True,
        )
        if result.status == "canceled":
            raise KeyboardInterrupt
        if result.status != "successful":
            if not run.message:
                run.message = _tail(result)
            raise failure(run)
    return run


def _tail(result: Any) -> str:
    try:
        text = result.stdout.read()
    except (OSError, AttributeError):
        text = ""
    return "\n".join(str(text).strip().splitlines()[-15:]) or f"ansible-playbook ended: {result.status}"
