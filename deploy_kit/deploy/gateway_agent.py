#!/usr/bin/env python3
"""What runs on a gateway's host: it starts smg with keys read from files, and lists the workers it routes to.

Copied there by Ansible's role `gateway`; Python's standard library only, beside smg itself. The list of
workers is smg's discovery manifest: one file, replaced atomically, read again by smg as soon as it changes
and at its start, so a gateway that restarts knows its workers. smg takes no key from a file: `run` hands them
over inside the process, so they are in no argument, environment variable or unit.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

EMPTY: dict[str, Any] = {"version": 1, "workers": []}


def with_worker(manifest: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Given a manifest, return it with a worker of this URL.

    >>> with_worker(EMPTY, "http://a:1")
    {'version': 1, 'workers': [{'url': 'http://a:1'}]}
    """
    if any(worker["url"] == url for worker in manifest["workers"]):
        return dict(manifest)
    workers = sorted([*manifest["workers"], {"url": url}], key=lambda worker: str(worker["url"]))
    return {**manifest, "workers": workers}


def without_worker(manifest: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Given a manifest, return it without workers of this URL."""
    return {**manifest, "workers": [worker for worker in manifest["workers"] if worker["url"] != url]}


def in_flight(listing: Mapping[str, Any], url: str) -> tuple[str, int]:
    """Given smg's answer to GET /workers, return a worker's status ("absent", "ready", "draining", …) and how
    many of its requests are not finished, over all registrations of that URL."""
    found = [worker for worker in listing.get("workers", []) if worker.get("url") == url]
    if not found:
        return "absent", 0
    statuses = [str(worker.get("status") or "unknown") for worker in found]
    load = sum(int(worker.get("load") or 0) for worker in found)
    return ("ready" if "ready" in statuses else statuses[0]), load


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest; an empty one where there is no file."""
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return dict(EMPTY)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("workers"), list):
        raise ValueError(f"{path} is not a manifest of workers")
    return manifest


def change_manifest(path: Path, url: str, *, present: bool) -> bool:
    """Add or remove a worker; return whether that changed the file."""
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_manifest(path)
        after = with_worker(before, url) if present else without_worker(before, url)
        if before == after and path.exists():
            return False
        descriptor, name = tempfile.mkstemp(prefix=".workers.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as handle:
                json.dump(after, handle, indent=1)
                handle.write("\n")
                handle.flush()
                os.fsync(handle.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
        return True


def ask(options: argparse.Namespace) -> tuple[str, int]:
    """Return a worker's status and load as smg sees them; ("unreachable", 0) when smg does not answer."""
    request = Request(
        f"http://{options.address}:{options.port}/workers",
        headers={"Authorization": f"Bearer {options.admin_key_file.read_text().strip()}"},
    )
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
            return in_flight(json.loads(answer.read()), options.url)
    except (URLError, OSError, ValueError):
        return "unreachable", 0


def drain(options: argparse.Namespace) -> dict[str, Any]:
    """Take a worker out and wait until none of its requests is in flight."""
    changed = change_manifest(options.manifest, options.url, present=False)
    began = time.monotonic()
    # smg counts a worker as draining once it has read the manifest; before, it may still be sent a request.
    status, load = ask(options)
    while time.monotonic() - began < options.seconds:
        if status == "absent" or (status not in ("ready", "unreachable") and load == 0):
            return {"changed": changed, "status": status, "load": 0, "seconds": time.monotonic() - began}
        time.sleep(0.2)
        status, load = ask(options)
    raise TimeoutError(f"{options.url}: {status}, {load} requests in flight after {options.seconds:.0f} s")


def admit(options: argparse.Namespace) -> dict[str, Any]:
    """Put a worker in and wait until requests are routed to it."""
    changed = change_manifest(options.manifest, options.url, present=True)
    began = time.monotonic()
    status, load = ask(options)
    while time.monotonic() - began < options.seconds:
        if status == "ready":
            return {"changed": changed, "status": status, "load": load, "seconds": time.monotonic() - began}
        time.sleep(0.2)
        status, load = ask(options)
    raise TimeoutError(f"{options.url}: {status} after {options.seconds:.0f} s; the gateway does not take it")


def run(options: argparse.Namespace, smg_arguments: Sequence[str]) -> int:
    """Start smg in this process, with both keys."""
    launcher = importlib.import_module("smg.launch_router")
    arguments = launcher.parse_router_args(list(smg_arguments))
    arguments.api_key = options.api_key_file.read_text().strip()
    # Without one of its own, whoever may ask for completions might also add and remove workers.
    admin = options.admin_key_file.read_text().strip()
    arguments.control_plane_api_keys = [("deploy-kit", "deploy-kit", admin, "admin")]
    launcher.launch_router(arguments)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the command line; print one JSON object (but `run`), return the exit code."""
    parser = argparse.ArgumentParser(prog="gateway_agent.py", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="start smg; its own arguments follow after --")
    one.add_argument("--api-key-file", type=Path, required=True)
    one.add_argument("--admin-key-file", type=Path, required=True)
    for name in ("drain", "admit", "status"):
        one = commands.add_parser(name)
        one.add_argument("url")
        one.add_argument("--manifest", type=Path, required=True)
        one.add_argument("--admin-key-file", type=Path, required=True)
        one.add_argument("--address", default="127.0.0.1")
        one.add_argument("--port", type=int, default=30080)
        one.add_argument("--seconds", type=float, default=600.0)
    options, rest = parser.parse_known_args(arguments)
    try:
        if options.command == "run":
            return run(options, [word for word in rest if word != "--"])
        if options.command == "status":
            status, load = ask(options)
            answer = {"changed": False, "status": status, "load": load}
        else:
            answer = drain(options) if options.command == "drain" else admit(options)
    except (OSError, ValueError) as error:
        print(f"{error} (exit code 14)", file=sys.stderr)
        return 14
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
