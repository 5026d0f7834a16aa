"""The cheap look before the load: does the lever's plan resolve, and does its all-reduce work here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy_kit.campaign.model import LeverStep, ProbeResult
from deploy_kit.exit_codes import ExitCode

LIMIT_SECONDS = 1200.0  # beyond what the probe itself gives a first compilation
_VERDICTS = (ExitCode.OK, ExitCode.VERDICT_WARN, ExitCode.VERDICT_FAIL, ExitCode.VERDICT_UNKNOWN)

Prober = Callable[[LeverStep, Path], ProbeResult]  # the step, and the folder its receipt goes to


def command_prober(
    *,
    host: str,
    model: str,
    configs: Path,
    command: tuple[str, ...] = (sys.executable, "-m", "deploy_kit", "probe"),
    limit_seconds: float = LIMIT_SECONDS,
) -> Prober:
    """Return a prober that runs `deploy-kit probe` for the step's candidate in a process of its own."""

    def probe(step: LeverStep, receipts: Path) -> ProbeResult:
        candidate = step.candidate or ""
        words = [*command, step.probe, "--host", host, "--model", model, "--configs", str(configs)]
        words += ["--candidates", candidate, "--receipts", str(receipts), "--json"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_seconds,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return ProbeResult(
                probe=step.probe,
                candidate=candidate,
                passed=None,
                cause=f"the probe could not be run: {type(error).__name__}",
                seconds=time.monotonic() - began,
            )
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        passed, cause, remedy = read_answer(answer, candidate, done.returncode)
        return ProbeResult(
            probe=step.probe,
            candidate=candidate,
            passed=passed,
            cause=cause,
            remedy=remedy,
            receipt_id=receipt_of(answer),
            seconds=time.monotonic() - began,
        )

    return probe


def read_answer(
    answer: Mapping[str, Any], candidate: str, code: int
) -> tuple[bool | None, str | None, str | None]:
    """Given what `deploy-kit probe --json` printed and its exit code, return whether the candidate passed
    (None: it could not find out), the cause and the remedy.

    >>> read_answer({"candidates": {"LL": {"status": "hang", "cause": "rank 1 in replay"}}}, "LL", 21)
    (False, 'hang: rank 1 in replay', None)
    """
    if code not in _VERDICTS:
        return None, str(answer.get("error") or f"the probe ended with {code}"), answer.get("remedy")
    candidates = answer.get("candidates")
    entry = candidates.get(candidate) if isinstance(candidates, Mapping) else None
    if not isinstance(entry, Mapping):
        return None, "the probe says nothing about it", None
    status = str(entry.get("status"))
    cause = str(entry.get("cause") or "")
    if status == "ok" and entry.get("acceptance", "accept") == "accept":
        return True, None, None
    if status == "not-run":
        return None, f"not run: {cause}", None
    return False, f"{status if status != 'ok' else 'rejected'}: {cause}".rstrip(": "), None


def receipt_of(answer: Mapping[str, Any]) -> str | None:
    """Given the probe's answer, return the short id in its receipt's file name."""
    files = answer.get("files")
    for file in files if isinstance(files, list) else []:
        stem = Path(str(file)).stem
        if str(file).endswith(".json") and stem.count("-") >= 2:
            return stem.rpartition("-")[2]
    return None
