"""Removing secrets and, when asked, what names the machine. Everything that is packed goes through here."""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deploy_kit.receipts import Receipt, new_receipt
from deploy_kit.runtime.postmortem import HIDDEN, remove_secrets

_KEY_VARIABLES = re.compile(r"(?i)(?:api[_-]?key|token|secret|password|passwd|credential)")
_NAMED = re.compile(r"(?i)(?:api_?key|token|secret|password|passwd|credentials?|authorization)$")
_SHORTEST = 6  # a shorter value would hit words of every day
_SHAPES = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bghp_[A-Za-z0-9]{20,}"),
    re.compile(r"(?i)\bbearer\s+(?!\[secret\]|REMOVED)[A-Za-z0-9._~+/-]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
)
# Without one of these no pattern fits; most lines have none, and the patterns are slow on long words.
_TRIGGERS = re.compile(r"(?i)bearer|key|token|passw|secret|hf_|sk-|ghp_|://")
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_HARDWARE = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_TOO_COMMON = {"localhost", "root", "user", "ubuntu", "debian", "host", "server", "gpu", "node"}
NAMELESS = "[removed]"


@dataclass(frozen=True)
class Guard:
    """What must not leave: the secrets' values, and (with `redact`) the machine's and the user's names."""

    secrets: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    redact: bool = False

    def clean(self, text: str) -> str:
        """Return the text without secrets, and without names where that was asked for."""
        for secret in self.secrets:
            for form in _forms(secret):
                text = text.replace(form, HIDDEN)
        text = "".join(
            self._clean_line(line) if _TRIGGERS.search(line) else line
            for line in text.splitlines(keepends=True)
        )
        if self.redact:
            for name in self.names:
                text = _word(name).sub(NAMELESS, text)
            text = _HARDWARE.sub(NAMELESS, _ADDRESS.sub(NAMELESS, text))
        return text

    def _clean_line(self, line: str) -> str:
        line = str(remove_secrets(line, None))
        for shape in _SHAPES:
            line = shape.sub(HIDDEN, line)
        return line

    def leaks(self, data: bytes) -> list[str]:
        """Return what is still in the data that must not be, without repeating it."""
        text = data.decode(errors="replace")
        found = [
            f"secret {number}"
            for number, secret in enumerate(self.secrets, start=1)
            if any(form in text for form in _forms(secret))
        ]
        found += [f"something like {shape.pattern}" for shape in _SHAPES if shape.search(text)]
        if self.redact:
            found += ["a name of this machine" for name in self.names if _word(name).search(text)]
        return found

    def clean_receipt(self, receipt: Receipt) -> Receipt:
        """Return the receipt unchanged where it is clean, else one with the texts replaced and its hash made
        anew: it is whole and readable, with another id."""
        content = receipt.model_dump(mode="json")
        cleaned = self._walk(content)
        if cleaned == content:
            return receipt
        return new_receipt(
            kind=receipt.kind,
            host=receipt.host.model_copy(update=cleaned["host"]),
            rehearsal=receipt.rehearsal,
            plan_id=cleaned["plan_id"],
            versions=cleaned["versions"],
            subject=cleaned["subject"],
            samples=cleaned["samples"],
            summary=cleaned["summary"],
            created_at=receipt.created_at,
        )

    def _walk(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.clean(key): self._walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        return self.clean(value) if isinstance(value, str) else value

    def clean_json(self, text: str) -> str:
        """Return a JSON document with its texts cleaned one by one, so that it stays JSON."""
        return json.dumps(self._walk(_without_named(json.loads(text))), indent=1, ensure_ascii=False) + "\n"


def make_guard(key_files: Sequence[Path], *, redact: bool) -> Guard:
    """Return the guard of this machine: the values of the key files, of secret-looking environment variables
    and of the hub's token file; with `redact` also host and user names."""
    values: list[str] = []
    home = Path.home()
    files = [
        *key_files,
        home / ".cache/huggingface/token",
        home / ".huggingface/token",
        Path(os.environ.get("HF_HOME", str(home / ".cache/huggingface"))) / "token",
    ]
    for file in files:
        try:
            values += file.read_text(errors="replace").split()
        except OSError:
            continue
    values += [
        value.strip()
        for name, value in os.environ.items()
        if _KEY_VARIABLES.search(name) and not name.upper().endswith(("_FILE", "_PATH", "_DIR", "_ID"))
    ]
    long = {value for value in values if len(value) >= _SHORTEST and not value.isdigit()}
    full = socket.gethostname()
    names = {full, full.partition(".")[0], socket.getfqdn(), _user(), str(home)} - {"/root"}
    kept = {name for name in names if len(name) > 2 and name.lower() not in _TOO_COMMON}
    return Guard(
        tuple(sorted(long, key=len, reverse=True)), tuple(sorted(kept, key=len, reverse=True)), redact
    )


def _without_named(value: Any) -> Any:
    # {"api_key": "…"}: the name says what the value is, whatever it looks like.
    if isinstance(value, dict):
        return {
            key: HIDDEN if isinstance(item, str) and item and _NAMED.search(key) else _without_named(item)
            for key, item in value.items()
        }
    return [_without_named(item) for item in value] if isinstance(value, list) else value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")


def _forms(secret: str) -> tuple[str, ...]:
    """Return the ways in which a secret may stand in a file: as it is, in a URL, in JSON, in base64."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    quoted = json.dumps(secret)[1:-1]
    return tuple(dict.fromkeys((secret, quote(secret, safe=""), quoted, encoded)))
