"""Asking the machine's own package index whether every pinned file is still there with its hash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx

from deploy_kit.stacks.locks import Pin
from deploy_kit.stacks.verify import Check


def index_url() -> str:
    """Return the address of the index that pip uses here: its configuration's, else pip's own default."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode == 0 and asked.stdout.strip():
        return asked.stdout.strip().rstrip("/")
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url).rstrip("/")


def check_index(pins: Iterable[Pin], *, advance: Callable[[], None] = lambda: None) -> list[Check]:
    """Given pins, return one check each: one of its hashes is offered by the index, not yanked."""
    url = index_url()
    headers = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with (
        httpx.Client(headers=headers, timeout=30, follow_redirects=True) as client,
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(pin: Pin) -> Check:
            try:
                answer = client.get(f"{url}/{pin.name}/")
                answer.raise_for_status()
                files = answer.json()["files"]
            except (httpx.HTTPError, ValueError, KeyError) as error:
                return Check(pin.name, False, f"unknown: the index gave no list ({type(error).__name__})")
            finally:
                advance()
            offered = {file["hashes"].get("sha256"): file for file in files}
            there = [offered[digest] for digest in pin.hashes if digest in offered]
            if not there:
                return Check(
                    pin.name, False, f"{pin.version}: none of its {len(pin.hashes)} hashes is offered"
                )
            yanked = all(file.get("yanked") for file in there)
            return Check(pin.name, not yanked, f"{pin.version}: {'yanked' if yanked else 'offered'}")

        return list(pool.map(ask, pins))
