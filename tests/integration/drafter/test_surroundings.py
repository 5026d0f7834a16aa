"""Commands in odd surroundings: no standard input, a full output, no UTF-8, no HOME, a folder gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CASE = ROOT / "tests/cases/drafter-05-pruned-vocab-without-d2t.yaml"
HOST = ROOT / "tests/cases/host-05-p2p-ok-but-hangs.yaml"
CHECK = ("drafter", "check", "--from", str(CASE))


def shell(script: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `deploy-kit WORDS` as "$@" of a shell script."""
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "deploy_kit", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    "words", [("drafter", "check", "--from", "-"), ("doctor", "--from", "-"), ("metrics", "explain", "-")]
)
def test_closed_standard_input_is_said(words: tuple[str, ...]) -> None:
    done = shell('"$@" <&-', *words)
    assert done.returncode == 5
    assert "standard input is closed" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [CHECK, (*CHECK, "--json"), ("doctor", "--from", str(HOST), "--json")])
def test_full_output_is_said(words: tuple[str, ...]) -> None:
    done = shell('"$@" >/dev/full', *words)
    assert done.returncode == 13
    assert "the disk is full" in done.stderr


@pytest.mark.parametrize("words", [CHECK, ("doctor", "--from", str(HOST))])
def test_without_utf8(words: tuple[str, ...]) -> None:
    ascii_only = "env LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING= "
    plain = shell(f'{ascii_only}"$@"', *words)
    assert plain.returncode == shell('"$@"', *words).returncode
    assert plain.stdout.isascii() and plain.stdout
    as_json = shell(f'{ascii_only}"$@"', *words, "--json")
    assert json.loads(as_json.stdout) == json.loads(shell('"$@"', *words, "--json").stdout)


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    done = shell(f'mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && "$@"', *CHECK)
    assert done.returncode == 21


def test_without_home_and_a_reader_that_goes_away() -> None:
    assert shell('env -u HOME "$@" >/dev/null', *CHECK).returncode == 21
    assert shell('"$@" | head -c 1', *CHECK, "--json").stdout == "{"


def test_names_that_are_no_utf8() -> None:
    done = shell('"$@" "$(printf "\\377")"', "drafter", "check")
    assert done.returncode == 5
