"""What `deploy-kit serve` and `deploy-kit health` take from their environment (the image's interface)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

DEFAULT_HOST_FILE = Path("/etc/deploy-kit/host.toml")
DEFAULT_STATE_DIRECTORY = Path("/run/deploy-kit")
DEFAULT_API_KEY_FILE = Path("/run/secrets/api_key")
DEFAULT_RECEIPTS = Path("/var/lib/deploy-kit/receipts")
DEFAULT_STARTS = Path("/var/lib/deploy-kit/starts")
DEFAULT_EXPORTER_PORT = 9400
DEFAULT_DRAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Settings:
    """Where things are; every field has an environment variable DEPLOY_KIT_<NAME>."""

    host: str | None
    model: str | None
    stack: str | None
    drafter: str | None
    levers: tuple[str, ...]
    address: str
    port: int
    exporter_port: int
    api_key_file: Path | None
    state_directory: Path
    stop_hung_seconds: float | None = None
    drain_seconds: float = DEFAULT_DRAIN_SECONDS
    receipts: Path | None = None
    starts: Path | None = None
    allow_missing_telemetry: bool = False


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Given environment variables, return the settings; a value of the wrong kind names its variable."""
    variables = os.environ if environment is None else environment

    def text(name: str) -> str | None:
        return variables.get(f"DEPLOY_KIT_{name}") or None

    host = text("HOST")
    if host is None and DEFAULT_HOST_FILE.exists():
        host = str(DEFAULT_HOST_FILE)
    key_file = text("API_KEY_FILE")
    if key_file is None and DEFAULT_API_KEY_FILE.exists():
        key_file = str(DEFAULT_API_KEY_FILE)
    receipts = text("RECEIPTS")
    if receipts is None and DEFAULT_RECEIPTS.is_dir():
        receipts = str(DEFAULT_RECEIPTS)
    starts = text("STARTS")
    if starts is None and DEFAULT_STARTS.is_dir():
        starts = str(DEFAULT_STARTS)
    return Settings(
        host=host,
        model=text("MODEL"),
        stack=text("STACK"),
        drafter=text("DRAFTER"),
        levers=tuple(name.strip() for name in (text("LEVERS") or "").split(",") if name.strip()),
        address=text("ADDRESS") or "127.0.0.1",
        port=_port("DEPLOY_KIT_PORT", text("PORT"), 30000),
        exporter_port=_port("DEPLOY_KIT_EXPORTER_PORT", text("EXPORTER_PORT"), DEFAULT_EXPORTER_PORT),
        api_key_file=None if key_file is None else Path(key_file),
        state_directory=Path(text("STATE_DIR") or DEFAULT_STATE_DIRECTORY),
        stop_hung_seconds=_seconds("DEPLOY_KIT_STOP_HUNG_SECONDS", text("STOP_HUNG_SECONDS")),
        drain_seconds=_seconds("DEPLOY_KIT_DRAIN_SECONDS", text("DRAIN_SECONDS")) or DEFAULT_DRAIN_SECONDS,
        receipts=Path(receipts) if receipts is not None else None,
        starts=Path(starts) if starts is not None else None,
        allow_missing_telemetry=_switch(
            "DEPLOY_KIT_ALLOW_MISSING_TELEMETRY", text("ALLOW_MISSING_TELEMETRY")
        ),
    )


def _port(name: str, value: str | None, default: int) -> int:
    if value is None:
        return default
    if not value.isdecimal() or not 0 < int(value) < 65536:
        raise DeployKitError(
            "not a port", key=name, found=value, allowed="1 to 65535", exit_code=ExitCode.CONFIG
        )
    return int(value)


def _switch(name: str, value: str | None) -> bool:
    if value is not None and value.lower() not in ("0", "1", "false", "true"):
        raise DeployKitError(
            "not a switch", key=name, found=value, allowed="1, true, 0 or false", exit_code=ExitCode.CONFIG
        )
    return value is not None and value.lower() in ("1", "true")


def _seconds(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise DeployKitError(
            "not a number of seconds", key=name, found=value, allowed="above 0", exit_code=ExitCode.CONFIG
        )
    return seconds
