#!/usr/bin/env bash
# Runs the probe for real on the GPUs of one host and leaves receipts, plots and logs in a folder.
#   tests/gpu/probe_two_gpus.sh OUT STAGE...      (needs python3 with torch, pydantic, typer, rich, matplotlib)
# BUDGET_SECONDS: of each search; the default is the command's own.
# Stages: sanity, search, search-nop2p, search-noshm, tree, fusion, grid-nop2p; shared (one GPU is enough). A failing sanity stage ends it.
set -u
out=$1; shift
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1
export FLASHINFER_CUDA_ARCH_LIST=9.0a COLUMNS=180
budget=${BUDGET_SECONDS:-120}

probe() {  # NAME SECONDS ARGUMENTS...
  local name=$1 limit=$2 began rc; shift 2
  began=$(date +%s.%N)
  timeout --kill-after=10 "$limit" python3 -m deploy_kit probe "$@" --receipts "$out/$name" >"$out/$name.txt" 2>"$out/$name.log"
  rc=$?
  printf '== %s: exit %s after %.1f s\n' "$name" "$rc" "$(echo "$(date +%s.%N) $began" | awk '{print $1 - $2}')" | tee -a "$out/times.txt"
  return "$rc"
}

chosen() {  # FOLDER: the fastest NCCL setting of each size in its receipt, each with a comma before it
  python3 - "$1" <<'PYTHON'
import json, sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).glob("allreduce-*.json"))[-1:]:
    summary = json.loads(path.read_text())["summary"]
    nccl = {name for name, found in summary["candidates"].items() if found["path"] == "process-group"}
    best = set()
    for size in summary["sizes"].values():
        medians = {n: v["median"] for n, v in size["latency_us"].items() if n in nccl}
        best.add(min(medians, key=medians.get))
    print("".join(f",{name}" for name in sorted(best - {"nccl-default", "story-2ch-128k"})), end="")
PYTHON
}

for stage in "$@"; do
  case $stage in
    sanity)
      probe sanity 100 allreduce --ranks 2 --tokens 1,64 --step-limit-seconds 15 \
        --candidates LL,tree-for-all,symm-one-shot,symm-two-shot,symm-one-shot-bare,flashinfer-pcie-ipc,flashinfer-fused
      rc=$?
      tail -n 60 "$out/sanity.txt"; tail -n 40 "$out/sanity.log"
      [ "$rc" -eq 0 ] || exit 1 ;;
    search) probe search $((budget + 40)) allreduce --ranks 2 --budget-seconds "$budget" --plot "$out/allreduce-p2p.png" ;;
    search-nop2p) NCCL_P2P_DISABLE=1 probe search-nop2p $((budget + 40)) allreduce --ranks 2 --budget-seconds "$budget" --plot "$out/allreduce-nop2p.png" ;;
    search-noshm) NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 \
        probe search-noshm $((budget + 40)) allreduce --ranks 2 --budget-seconds "$budget" --plot "$out/allreduce-noshm.png" ;;
    tree) probe tree 60 allreduce --ranks 2 --tokens 1,4 --candidates tree-for-all ;;
    shared | shared-allreduce)
      [ "$stage" = shared-allreduce ] || probe shared-fusion 120 fusion --share-gpu --ranks 2 --tokens 1,3,4,8,64 --count 16
      probe shared-allreduce 120 allreduce --share-gpu --ranks 2 --tokens 1,4,64 --count 16 ;;
    fusion) probe fusion 90 fusion --ranks 2 ;;
    grid-nop2p)  # after search-nop2p: what it chose for each size, and a whole grid, in one run
      NCCL_P2P_DISABLE=1 probe grid-nop2p 200 allreduce --ranks 2 --tokens 1,4,8,64 \
        --candidates "story-2ch-128k$(chosen "$out/search-nop2p")" \
        --grid "protocol=default,LL,LL128,Simple algorithm=default,ring,tree channels=default,2,8,16" ;;
    *) echo "no such stage: $stage" >&2; exit 2 ;;
  esac
done
exit 0
