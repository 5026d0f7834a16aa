"""The exporter alone, beside an engine of elsewhere:  python -m deploy_kit.exporter PROFILE --engine URL

In the engine's own container `deploy-kit serve` runs it; this is for an image that holds nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.output import print_error


def main() -> None:
    """Serve until a signal comes; the plan is resolved as `deploy-kit serve` would resolve it."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.exporter.facts import PlanFacts
    from deploy_kit.exporter.server import start_exporter
    from deploy_kit.plan.resolve import resolve

    parser = argparse.ArgumentParser(prog="deploy_kit.exporter", description=__doc__)
    parser.add_argument("profile", help="the profile that the engine serves")
    parser.add_argument("--engine", required=True, help="the engine's base address")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.environ.get("DEPLOY_KIT_EXPORTER_PORT") or 9400))
    parser.add_argument("--host", help="[DEPLOY_KIT_HOST]", default=os.environ.get("DEPLOY_KIT_HOST"))
    parser.add_argument("--stack", help="[DEPLOY_KIT_STACK]", default=os.environ.get("DEPLOY_KIT_STACK"))
    parser.add_argument("--model", help="[DEPLOY_KIT_MODEL]", default=os.environ.get("DEPLOY_KIT_MODEL"))
    parser.add_argument("--api-key-file", type=Path, help="a file with the engine's key")
    asked = parser.parse_args()
    try:
        plan = resolve(Catalog.find(), asked.profile, host=asked.host, stack=asked.stack, model=asked.model)
        facts = PlanFacts(
            plan_id=plan.plan_id,
            profile=plan.profile,
            stack=plan.stack,
            model=plan.model,
            host=plan.host,
            rehearsal=plan.rehearsal,
            speculative=any(word.startswith("--speculative-algorithm") for word in plan.argv),
        )
        key = asked.api_key_file.read_text().strip() if asked.api_key_file else None
        exporter = start_exporter(
            asked.port, address=asked.address, engine_url=asked.engine, plan=facts, api_key=key
        )
    except DeployKitError as error:
        print_error(error)
        sys.exit(int(error.exit_code))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"exporter: {asked.engine} on {asked.address}:{exporter.port}", file=sys.stderr, flush=True)
    stop.wait()
    exporter.stop()


if __name__ == "__main__":
    main()
