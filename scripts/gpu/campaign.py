"""Runs a campaign of real engines on two GPUs: custom all-reduce, an NCCL setting, no CUDA graphs, symmetric
memory, each against EAGLE-3 over NCCL. Needs SGLang importable (scripts/gpu/prepare.sh packs it).

    python3 scripts/gpu/campaign.py OUT [--seconds 300]

It begins no cell that would not be over by then, and goes on when run again on the same machine.
OUT/campaign.tar.xz holds the campaign's folder: state, receipts, logs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from waves import MODEL_NAME, ROOT, Server, make_configs, make_host, make_models

CAMPAIGN = f"""
name = "two-gpus"
description = "Four levers of the verify on two H200, NVLink between them"
question = "Which lever makes a verify of 122 all-reduces faster, and can a campaign tell what does nothing?"

[base]
profile = "eagle3"
model = "{MODEL_NAME}"
stack = "rollback"

[bench]
concurrencies = [1, 8]
rounds = 2
requests = 3
output_tokens = 96

[schedule]
repeats = 3
start_limit_seconds = 240
expected_start_seconds = 60
expected_bench_seconds = 15

[[lever]]
name = "eager-verify"
claimed = "slower: the counter-check"
claimed_by = "the lever's file"

[[lever]]
name = "nccl-two-channels"
claimed = "less latency of every all-reduce; how much is not said"
claimed_by = "the story; the probe found it slower"

[[lever]]
name = "custom-allreduce"
claimed = "4.7 against 5.3 ms a verify at batch 1"
claimed_by = "a hand measurement on 2 x H200"
claimed_cycle_saving_ms = [0.5, 0.6]
probe = "allreduce"
candidate = "sglang-custom"

[[lever]]
name = "torch-symm-mem"
claimed = "6.5 against 17.0 us an all-reduce of 4 tokens"
claimed_by = "the all-reduce probe on 2 x H200 with P2P"
claimed_cycle_saving_ms = [1.3, 1.3]
probe = "allreduce"
candidate = "symm-one-shot"
"""


def main() -> int:
    """Run the campaign, or go on with it; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "var" / "real-engine")
    parser.add_argument("--seconds", type=int, default=540)
    parser.add_argument("--no-probe", action="store_true", help="leave out the probes before the loads")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    import torch

    memory_gib = torch.cuda.mem_get_info()[1] / 1024**3
    make_models(work / "models")
    configs = make_configs(work, work / "models")
    # Plain NCCL with P2P; the accept length is set, so that only times differ.
    host = make_host(work, Server("campaign", "eagle3", 0, 2.0, all_reduce="nccl-p2p"), memory_gib, 2, {})
    file = work / "two-gpus.toml"
    file.write_text(CAMPAIGN)
    folder = work / "campaign"
    environment = {
        **os.environ, "DEPLOY_KIT_DRAIN_SECONDS": "5", "DEPLOY_KIT_PORT": "31900", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    words = [sys.executable, "-m", "deploy_kit", "campaign", str(file), "--state", str(folder), "--yes"]
    words += ["--host", str(host), "--configs", str(configs), "--for", f"{arguments.seconds}s"]
    words += ["--no-probe"] if arguments.no_probe else []
    code = subprocess.run(words, check=False, env=environment, cwd=ROOT).returncode
    arguments.out.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        with tarfile.open(arguments.out / "campaign.tar.xz", "w:xz") as archive:
            archive.add(folder, arcname="campaign")
    return code


if __name__ == "__main__":
    sys.exit(main())
