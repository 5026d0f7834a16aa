"""The API key: read from a file, handed to the engine in a file, kept out of argv, environment and logs."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text, write_atomically

MINIMUM_LENGTH = 16


def read_api_key(file: Path | None, *, address: str) -> str | None:
    """Return the key in `file`; None without a file on a loopback address, an error on any other address."""
    if file is None:
        if _is_loopback(address):
            return None
        raise DeployKitError(
            f"an API key is required when the engine listens on {address}",
            key="DEPLOY_KIT_API_KEY_FILE",
            found="no file",
            remedy="name a file that holds the key, or listen on 127.0.0.1",
            exit_code=ExitCode.CONFIG,
        )
    key = read_text(file, what="API key file", limit_bytes=4096).strip()
    if len(key) < MINIMUM_LENGTH or not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        raise DeployKitError(
            "this is not an API key",
            file=file,
            found=f"{len(key)} characters"
            + (", with white space or control characters" if key.split() != [key] else ""),
            allowed=f"one line of at least {MINIMUM_LENGTH} printable ASCII characters",
            exit_code=ExitCode.CONFIG,
        )
    return key


def write_engine_config(folder: Path, api_key: str) -> Path:
    """Write the key as a configuration file for the engine's --config, readable by this user only."""
    path = folder / "engine-secrets.yaml"
    # JSON text is YAML text, and quotes whatever the key holds.
    write_atomically(path, f"api-key: {json.dumps(api_key)}\n", mode=0o600)
    return path


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
