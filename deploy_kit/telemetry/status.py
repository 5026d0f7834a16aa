"""What the plug-in tells `deploy-kit serve`: a small JSON file in the state folder."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "telemetry.json"


@dataclass(frozen=True)
class TelemetryStatus:
    """What one scheduler process reports after SGLang applied its hooks.

    `applied` and `failed` hold hook targets; `timer` is "device" (CUDA events), "wall" (the CPU engine) or
    "off", with the reason in `reason`. `metrics` is False when `--enable-metrics` is missing: then nothing is
    exported.
    """

    pid: int
    written_at_seconds: float
    sglang_version: str
    deploy_kit_version: str
    applied: tuple[str, ...]
    failed: tuple[str, ...]
    timer: str
    metrics: bool
    reason: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every hook applied, forwards are timed, and the engine exports metrics."""
        return not self.failed and self.metrics and self.timer != "off"


def clear_status(state_directory: Path) -> None:
    """Remove an earlier run's file; call before the engine starts, or a stale one would vouch for it."""
    (state_directory / FILE_NAME).unlink(missing_ok=True)


def write_status(state_directory: Path, status: TelemetryStatus) -> None:
    """Write the status, whole or not at all. Raises OSError: the plug-in's caller decides what that means."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE_NAME}.", dir=state_directory)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(asdict(status), handle, indent=2, sort_keys=True)
            handle.write("\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(state_directory / FILE_NAME)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_status(state_directory: Path) -> TelemetryStatus | None:
    """Return what the plug-in wrote; None when it wrote nothing (not loaded, or its first hook did not
    apply), or the file is not one of ours."""
    try:
        content = json.loads((state_directory / FILE_NAME).read_text(encoding="utf-8"))
        return TelemetryStatus(
            **{**content, "applied": tuple(content["applied"]), "failed": tuple(content["failed"])}
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def explain_missing(status: TelemetryStatus | None) -> str | None:
    """Given the status of an engine that is ready, return what its telemetry lacks; None if nothing."""
    if status is None:
        return (
            "the telemetry plug-in did not start in the engine: SGLANG_PLUGINS must name "
            "deploy_kit_telemetry, "
            "deploy_kit must be installed for the engine's Python, and SGLang must still have "
            "SchedulerMetricsReporter._install_device_timer_on_runners"
        )
    if status.failed:
        return f"SGLang {status.sglang_version} has no {', '.join(status.failed)}: those hooks did not apply"
    if not status.metrics:
        return "the engine exports no metrics: --enable-metrics is missing"
    if status.timer == "off":
        return f"forwards are not timed: {status.reason or 'reason unknown'}"
    return None
