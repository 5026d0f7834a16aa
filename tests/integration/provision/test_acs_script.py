"""The script that clears ACS redirection, run by sh on a tree like /sys, with a stand-in of setpci."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "ansible/roles/pcie_host/files/deploy-kit-acs"
SETPCI = """\
#!/bin/sh
# STAND-IN for setpci: one register a port, in files; understands value:mask as setpci does.
port=$2 word=$3
case $word in
*=*) value=${word#*=}; mask=ffff
     case $value in *:*) mask=${value#*:}; value=${value%:*} ;; esac
     old=$(cat "$REGISTERS/$port") || exit 1
     printf '%04x\\n' $(( (0x$old & ~0x$mask) | (0x$value & 0x$mask) )) >"$REGISTERS/$port" ;;
*) cat "$REGISTERS/$port" ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two GPUs below ports, one of them below a switch, and a network card below a port of its own."""
    paths = {
        "0000:10:01.0": ("pci0000:10/0000:10:01.0", "0x1022", "0x060400"),
        "0000:11:00.0": ("pci0000:10/0000:10:01.0/0000:11:00.0", "0x10de", "0x030200"),
        "0000:20:01.0": ("pci0000:20/0000:20:01.0", "0x1022", "0x060400"),
        "0000:21:00.0": ("pci0000:20/0000:20:01.0/0000:21:00.0", "0x1000", "0x060400"),
        "0000:22:00.0": ("pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:00.0", "0x10de", "0x030000"),
        "0000:30:01.0": ("pci0000:30/0000:30:01.0", "0x1022", "0x060400"),
        "0000:31:00.0": ("pci0000:30/0000:30:01.0/0000:31:00.0", "0x15b3", "0x020000"),
    }
    devices = tmp_path / "bus"
    devices.mkdir()
    for name, (path, vendor, kind) in paths.items():
        folder = tmp_path / "devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
        (devices / name).symlink_to(folder)
    registers = tmp_path / "registers"
    registers.mkdir()
    for port, value in (("0000:10:01.0", "001d"), ("0000:20:01.0", "000c"), ("0000:30:01.0", "001d")):
        (registers / port).write_text(f"{value}\n")  # 0000:21:00.0 is a port without ACS
    (tmp_path / "setpci").write_text(SETPCI)
    (tmp_path / "setpci").chmod(0o755)
    return tmp_path


def run(tree: Path, word: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(SCRIPT), word],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{tree}:{os.environ['PATH']}",
            "DEPLOY_KIT_PCI_DEVICES": str(tree / "bus"),
            "DEPLOY_KIT_ACS_STATE": str(tree / "before"),
            "REGISTERS": str(tree / "registers"),
        },
    )


def registers(tree: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in (tree / "registers").iterdir()}


def test_only_redirection_is_cleared_only_above_gpus_and_comes_back(tree: Path) -> None:
    before = registers(tree)
    for _ in range(2):
        done = run(tree, "clear")
        assert done.returncode == 0, done.stderr
        assert registers(tree) == {"0000:10:01.0": "0011", "0000:20:01.0": "0000", "0000:30:01.0": "001d"}
    assert "0000:10:01.0: ACS control" in done.stdout
    assert run(tree, "restore").returncode == 0
    assert registers(tree) == before
    assert run(tree, "restore").returncode == 0


def test_another_word_is_refused(tree: Path) -> None:
    assert run(tree, "off").returncode == 2
