"""One file to share: the work folder's files, cleaned, scanned, written whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from deploy_kit import __version__
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import write_atomically
from deploy_kit.firstlight.secrets import Guard
from deploy_kit.firstlight.settings import STATE_FILE, State
from deploy_kit.receipts import read_receipt

_LONGEST_LOG_BYTES = 2_000_000  # of each end of a longer log
_KINDS = {".json", ".txt", ".log", ".err", ".out", ".md", ".html"}


def pack(work: Path, output: Path, state: State, guard: Guard, *, rehearsal: bool) -> dict[str, object]:
    """Write the archive and return what is in it.

    Raises `DeployKitError`, with nothing written, when a secret is left in a file after cleaning.
    """
    files = collect(work, guard)
    files["README.md"] = guard.clean(readme(state, rehearsal=rehearsal, redact=guard.redact)).encode()
    leaks = {
        name: found
        for name, data in files.items()
        if (found := guard.leaks(data) + guard.leaks(name.encode()))
    }
    if leaks:
        name, found = next(iter(leaks.items()))
        raise DeployKitError(
            "a secret is left in what was to be packed; nothing was written",
            file=work / name,
            found=", ".join(found),
            remedy="remove it from that file, or the file, and run the same command again",
            exit_code=ExitCode.FAILURE,
        )
    write_atomically(output, archive(files), mode=0o600)
    return {"file": str(output), "files": sorted(files), "bytes": output.stat().st_size}


def collect(work: Path, guard: Guard) -> dict[str, bytes]:
    """Return the work folder's files by name, cleaned; links and other kinds of files are left out."""
    found: dict[str, bytes] = {}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work).as_posix()
        if path.is_symlink() or not path.is_file() or path.suffix not in _KINDS or path.name.startswith("."):
            continue
        if name.startswith("receipts/") and path.suffix == ".json":
            receipt = guard.clean_receipt(read_receipt(path))
            data = (receipt.model_dump_json(indent=1) + "\n").encode("utf-8", "surrogatepass")
            found[f"receipts/{receipt.file_name}"] = data
            continue
        text = _shortened(path.read_bytes()).decode(errors="replace")
        cleaned = guard.clean(text)
        if path.suffix == ".json" or name == STATE_FILE:
            # A step that failed may have left half an answer: then it stays cleaned text.
            with contextlib.suppress(ValueError, RecursionError):
                cleaned = guard.clean_json(text)
        found[name] = cleaned.encode()
    return found


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a gzipped tar archive of the files, in one folder, without this machine's owners and times."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"firstlight/{name}")
            entry.size = len(files[name])
            entry.mode = 0o644
            entry.mtime = int(time.time()) // 86400 * 86400
            tar.addfile(entry, io.BytesIO(files[name]))
    return gzip.compress(raw.getvalue(), mtime=0)


def readme(state: State, *, rehearsal: bool, redact: bool) -> str:
    """Return the page that lies on top of the archive."""
    lines = [f"# First light (deploy-kit {__version__})", ""]
    if rehearsal:
        lines += [
            "**REHEARSAL: made on a machine without GPUs; nothing here says anything about real hardware.**",
            "",
        ]
    lines += ["| step | outcome | took | why |", "| --- | --- | --- | --- |"]
    for name, step in state.steps.items():
        took = "-" if step.seconds is None else f"{step.seconds:.0f} s"
        why = (step.why or "-").replace("|", "\\|")
        lines.append(f"| {name} | {step.outcome} | {took} | {why} |")
    lines += [
        "",
        "Read `report.html` first (or `report.md`). `receipts/` holds every sample; `doctor/bundle` is read",
        "with `deploy-kit doctor --from`, `engines/*/engine.log` with `deploy-kit startup explain`.",
        "",
        "API keys and tokens are removed."
        + (
            " Host names, user names and addresses are removed, too: receipts that held them have a new id."
            if redact
            else " Host names are not: `--redact` removes them."
        ),
        "",
        "```",
        json.dumps(state.settings.model_dump(mode="json"), indent=1),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _shortened(data: bytes) -> bytes:
    if len(data) <= 2 * _LONGEST_LOG_BYTES:
        return data
    cut = len(data) - 2 * _LONGEST_LOG_BYTES
    middle = f"\n[… {cut} bytes left out here …]\n".encode()
    return data[:_LONGEST_LOG_BYTES] + middle + data[-_LONGEST_LOG_BYTES:]
