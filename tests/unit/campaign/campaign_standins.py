"""STAND-INS for engines and measurements, so that a campaign's own logic can be run in milliseconds."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy_kit.bench.run import About
from deploy_kit.campaign.engines import EngineFailure, RunningEngine, Say
from deploy_kit.campaign.model import Campaign
from deploy_kit.campaign.prepare import Prepared, prepare
from deploy_kit.configs.catalog import Catalog
from deploy_kit.plan.model import Plan
from deploy_kit.receipts import Host, Receipt, new_receipt
from deploy_kit.receipts.bench import BenchSubject, BenchSummary, CellRound, EngineCell, Workload

ROOT = Path(__file__).parents[3]
LEVER = """
name = "{name}"
description = "of a test"
expected_effect = "of a test"
acceptance = "of a test"
status_on_sm120 = "not for SM120"
source = "a test"
excludes = [{excludes}]
[needs]
accelerator = "cpu"
[environment]
DEPLOY_KIT_TEST_{variable} = "1"
"""
# Tokens/s and accept length of the stand-in engine, by lever.
SPEEDS = {"faster": 1.30, "same": 1.00, "slower": 0.80, "better": 1.10, "wrong": 1.50}
ACCEPTS = {"wrong": 0.3}


def configs_with(folder: Path, *levers: str, excludes: dict[str, str] | None = None) -> Catalog:
    """The project's configurations and these levers."""
    shutil.copytree(ROOT / "configs", folder / "configs", dirs_exist_ok=True)
    for name in levers:
        others = (excludes or {}).get(name, "")
        text = LEVER.format(
            name=name, variable=name.upper().replace("-", "_"), excludes=f'"{others}"' if others else ""
        )
        (folder / "configs" / "levers" / f"{name}.toml").write_text(text)
    return Catalog(folder / "configs")


def campaign_of(*levers: str, **schedule: Any) -> Campaign:
    """A campaign on the rehearsal host's baseline."""
    return Campaign.model_validate(
        {
            "name": "of-a-test",
            "description": "of a test",
            "question": "does it work?",
            "base": {"profile": "eagle3", "host": "rehearsal"},
            "schedule": {"repeats": 3, **schedule},
            "lever": [{"name": name} for name in levers],
        }
    )


def prepared_of(folder: Path, *levers: str, excludes: dict[str, str] | None = None, **more: Any) -> Prepared:
    """The same, with its plans."""
    catalog = configs_with(folder, *levers, excludes=excludes)
    return prepare(campaign_of(*levers, **more), catalog, host="rehearsal", address="127.0.0.1", port=30000)


@dataclass
class StandinRunner:
    """Starts nothing. Levers called crash… do not come up, those called inert… are left off by the engine,
    those called fades… once it is measured;
    `base_fails` that many starts of the base."""

    started: list[str] = field(default_factory=list)  # the levers of each start, joined
    base_fails: int = 0
    before: Callable[[Plan], None] = lambda plan: None
    name: str = "stand-in"
    stand_in: str | None = "tests/unit/campaign/campaign_standins.py"
    address: str = "127.0.0.1"
    port: int = 30000

    @contextlib.contextmanager
    def running(self, plan: Plan, folder: Path, say: Say) -> Iterator[RunningEngine]:
        del folder
        say("starting")
        self.before(plan)
        self.started.append("+".join(plan.levers) or "base")
        if any(lever.startswith("crash") for lever in plan.levers):
            raise EngineFailure("killed: out of memory", "oom", "less of it", 40, ("torch.OutOfMemoryError",))
        if not plan.levers and self.base_fails:
            self.base_fails -= 1
            raise EngineFailure("a rank was lost", "rank-lost", None, 32)
        looks: list[int] = []

        def off() -> dict[str, str]:
            looks.append(1)
            seen = ("inert", "fades") if len(looks) > 1 else ("inert",)
            return {lever: f"{lever} is disabled here" for lever in plan.levers if lever.startswith(seen)}

        yield RunningEngine(url="http://127.0.0.1:1", start_seconds=10.0, levers_off=off)


def standin_bencher(
    *,
    seed: int = 1,
    noise_ratio: float = 0.005,
    seconds: float = 0.0,
    note: Callable[[str], None] | None = None,
) -> Callable[[RunningEngine, Plan, About], Receipt]:
    """A bencher that makes up speeds: the levers' factors, with noise."""
    draw = random.Random(seed)

    def run(engine: RunningEngine, plan: Plan, about: About) -> Receipt:
        del engine
        if note is not None:
            note(about.server_start or "")
        time.sleep(seconds)
        speed, accept = 100.0, 2.75
        for lever in plan.levers:
            speed *= SPEEDS.get(lever, 1.0)
            accept *= ACCEPTS.get(lever, 1.0)
        speed *= 1 + draw.gauss(0, noise_ratio)
        return receipt_of(about, plan, speed, accept)

    return run


def receipt_of(
    about: About, plan: Plan, speed: float, accept: float, versions: dict[str, str] | None = None
) -> Receipt:
    """A bench receipt of one round at C=1."""
    subject = BenchSubject(
        profile=plan.profile,
        levers=list(plan.levers),
        model=plan.served_model_name,
        interface="openai",
        workload=Workload(
            name="made up", sha256="0" * 64, output_tokens=16, temperature=0.0, ignore_eos=True, seed=1
        ),
        server_start=about.server_start,
        stand_in=about.stand_in,
    )
    cell = CellRound(
        load="closed",
        concurrency=1,
        context_band="0-2k",
        round=0,
        requests=8,
        errors=0,
        retries=0,
        interval_seconds=1.0,
        output_tokens=128,
        tokens_per_second=speed,
        stream_tokens_per_second=speed * 1.02,
        cycle_seconds=accept / speed,
        engine=EngineCell(accept_length=accept, verify_seconds=0.7 * accept / speed),
    )
    return new_receipt(
        kind="bench",
        host=Host(name=about.host),
        rehearsal=True,
        plan_id=plan.plan_id,
        versions={"sglang": "0.0.0", **(versions or {})},
        subject=subject.model_dump(),
        samples=[],
        summary=BenchSummary(cells=[cell]).model_dump(),
    )
