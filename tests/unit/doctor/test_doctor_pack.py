"""The reader as one file: whatever the doctor imports to read a machine is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy_kit.provision.capture import write_reader


def test_the_packed_reader_needs_python_only(tmp_path: Path) -> None:
    reader = write_reader(tmp_path / "reader.pyz")
    program = f"""
import sys
sys.path[:] = [{str(reader)!r}] + [place for place in sys.path if not place.endswith("site-packages")]
from deploy_kit.doctor import blocks, sources
from deploy_kit.doctor.facts import machine
assert blocks.__file__.startswith({str(reader)!r})
assert machine.gather(blocks.split_blocks("$ lscpu\\nCPU(s): 4\\n")).cpu.cpus == 4
assert sources.live_sources()
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
