"""`python -m deploy_kit.probe.worker`: one rank. Reads a job, then commands, from stdin; writes events."""

from __future__ import annotations

import os
import sys
from typing import Any

from .channel import Channel, die_with_parent, show_stack_on_signal


def main() -> int:
    """Serve commands until `leave` or the end of stdin; every outcome is an event."""
    die_with_parent()
    show_stack_on_signal()
    channel = Channel()
    commands = channel.commands()
    job = next(commands, None)
    if job is None:
        return 0
    step = "start"
    try:
        # Imported here: a machine without torch must answer with an event, not with a traceback.
        from .fusion import FusionSession
        from .session import Session

        session = (FusionSession if job["task"] == "fusion" else Session)(job, channel)
        channel.send("done", step=step, result=session.ready())
        for command in commands:
            step = command.pop("do")
            channel.send("begin", step=step)
            channel.send("done", step=step, result=getattr(session, step)(**command))
            if step == "leave":
                break
    except Exception as error:  # noqa: BLE001  (whatever ends a rank is the finding)
        channel.send("failed", step=step, **_described(error))
        return 3
    finally:
        sys.stderr.flush()
    return 0


def _described(error: Exception) -> dict[str, Any]:
    name = type(error).__name__
    kind = {"UnsupportedError": "unsupported", "WrongError": "wrong"}.get(name, "crash")
    if isinstance(error, ImportError) and "torch" in str(error):
        kind = "unsupported"
    return {"kind": kind, "type": name, "message": str(error)[:4000]}


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Without this, a broken communicator's threads can keep the process for minutes.
    os._exit(code)
