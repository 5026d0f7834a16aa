"""A STAND-IN for `deploy-kit serve`: writes its files, and behaves as the lever's name says; serves nothing.

Usage: standin_serve.py PROFILE --host … [--lever=crashes|hangs|deaf|says-no|inert]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from deploy_kit.runtime.state import EngineState, write_state

FOLDER = Path(os.environ["DEPLOY_KIT_STATE_DIR"])
LEVERS = [word.removeprefix("--lever=") for word in sys.argv if word.startswith("--lever=")]


def say(phase: str, *, ready: bool = False, cause: str | None = None) -> None:
    write_state(
        FOLDER,
        EngineState(
            phase=phase,
            plan_id="p",
            profile=sys.argv[1],
            model="m",
            served_model_name="m",
            rehearsal=True,
            pid=os.getpid(),
            engine_pid=None,
            started_at_seconds=time.time(),
            ready_at_seconds=time.time() if ready else None,
            cause=cause,
            details={
                "stalled_checks": ["no log line for 9 s"],
                "levers_off": {lever: "it is disabled here" for lever in LEVERS if lever == "inert"},
            },
        ),
    )


def stop(_signum: int, _frame: FrameType | None) -> None:
    if "deaf" not in LEVERS:
        say("exited", cause="stopped as asked")
        sys.exit(0)


signal.signal(signal.SIGTERM, stop)
print("argv", json.dumps(sys.argv[1:]), flush=True)
print(
    "environment",
    json.dumps({k: v for k, v in os.environ.items() if k.startswith("DEPLOY_KIT_")}),
    flush=True,
)
if "says-no" in LEVERS:
    print("deploy-kit: the model is not there\n  found:   nothing\n  remedy:  download it", flush=True)
    sys.exit(42)
say("loading")
if "crashes" in LEVERS:
    explanation = {
        "cause": "out of GPU memory while loading", "cause_id": "oom-load", "remedy": "less",
        "evidence": ["torch.OutOfMemoryError: CUDA out of memory"],
    }  # fmt: skip
    (FOLDER / "post-mortem.json").write_text(json.dumps({"explanation": explanation}))
    say("exited", cause="out of GPU memory while loading")
    sys.exit(40)
if "hangs" not in LEVERS:
    say("ready", ready=True)
while True:
    time.sleep(0.1)
