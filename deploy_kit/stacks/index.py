"""Asking the machine's own package index whether every pinned file is still there with its hash."""

from __future__ import annotations

import re
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


_PYTHON_MINOR = 11
_GLIBC_MINOR = 36


def fits_the_images(filename: str) -> bool:
    """Given a wheel's file name, return whether the images (Python 3.11, x86_64, glibc 2.36) can install it.

    >>> fits_the_images("a-1-py3-none-any.whl"), fits_the_images("a-1-cp311-cp311-win_amd64.whl")
    (True, False)
    >>> fits_the_images("a-1-cp39-abi3-manylinux_2_28_x86_64.whl")
    True
    """
    parts = filename.removesuffix(".whl").split("-")
    if not filename.endswith(".whl") or len(parts) < 5:
        return False
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    python = any(_is_python(word, stable="abi3" in abis) for word in pythons)
    return python and any(_is_platform(word) for word in platforms)


def _is_python(word: str, *, stable: bool) -> bool:
    """Whether a Python tag is ours: py3 and cp311, an older py3N, or an older cp3N with the stable ABI."""
    found = re.fullmatch(r"(py|cp)3(\d*)", word)
    if found is None:
        return False
    minor = int(found[2] or 0)
    return minor == _PYTHON_MINOR or (minor < _PYTHON_MINOR and (found[1] == "py" or stable))


def _is_platform(word: str) -> bool:
    numbered = re.fullmatch(r"manylinux_2_(\d+)_x86_64", word)
    if numbered:
        return int(numbered[1]) <= _GLIBC_MINOR
    return word in ("any", "linux_x86_64") or re.fullmatch(r"manylinux(1|2010|2014)_x86_64", word) is not None


def check_index(pins: Iterable[Pin], *, advance: Callable[[], None] = lambda: None) -> list[Check]:
    """Given pins, return one check each: the index offers, under one of its hashes and not yanked, a wheel
    that the images can install."""
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
            if yanked:
                return Check(pin.name, False, f"{pin.version}: yanked")
            wheels = [file["filename"] for file in there if fits_the_images(file["filename"])]
            if not wheels:
                names = ", ".join(sorted(file["filename"] for file in there)[:3])
                allowed = f"allowed a wheel for Python 3.{_PYTHON_MINOR} on x86_64"
                return Check(pin.name, False, f"{pin.version}: found only {names}, {allowed}")
            return Check(pin.name, True, f"{pin.version}: offered")

        return list(pool.map(ask, pins))
