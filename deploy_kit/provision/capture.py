"""Reading a target with the doctor's own reader: packed into one file that needs only Python there."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.model import Unknown
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import write_atomically

_MAIN = """\
import json, sys
from deploy_kit.doctor.sources import read_machine
blocks, unknown = read_machine(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else None)
json.dump({
    "blocks": [[block.title, block.text] for block in blocks],
    "unknown": [[one.source, one.reason, one.command] for one in unknown],
}, sys.stdout)
"""


def write_reader(path: Path) -> Path:
    """Write the doctor's reader as one file that Python runs by itself; return the path. The same package
    gives the same bytes."""
    package = Path(__file__).resolve().parents[1]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN)
        for name in ("__init__.py", "errors.py", "exit_codes.py", "pasted.py", "patterns.py"):
            _add(archive, f"deploy_kit/{name}", (package / name).read_text())
        for file in sorted((package / "doctor").rglob("*.py")):
            _add(archive, f"deploy_kit/{file.relative_to(package)}", file.read_text())
    write_atomically(path, buffer.getvalue())
    return path


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)


def parse_capture(text: str) -> tuple[list[Block], list[Unknown]]:
    """Given what the reader printed, return outputs and what could not be read."""
    try:
        content = json.loads(text)
        return (
            [Block(title, body) for title, body in content["blocks"]],
            [Unknown(source, reason, command) for source, reason, command in content["unknown"]],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DeployKitError(
            "what the target's reader printed cannot be understood",
            found=text[:200] or "nothing",
            remedy="the target needs Python 3.11 or newer",
            exit_code=ExitCode.INPUT,
        ) from error
