"""The steps of a first light, in order: what each runs, how long it may take, and what it needs. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from deploy_kit.deploy.checkout import SERVICES
from deploy_kit.firstlight.settings import Settings, Situation
from deploy_kit.probe.setup import PYTHON_VARIABLE

# Estimates, not measurements: of an image build, of a load of some 550 GB, of a start in rehearsal.
_BUILD_SECONDS = 900
_LOAD_SECONDS = 1500
_REHEARSAL_START_SECONDS = 240
_SLOWEST_STREAM = {False: 40.0, True: 10.0}  # tokens/s of one stream, to be on the safe side
NO_GPU = "no GPU"


@dataclass(frozen=True)
class Step:
    """One step. `arguments` are deploy-kit's own; `accepts` are exit codes that mean that it ran (a check
    that found a fault ran). `skip` says why it cannot run here; `postpone` why not yet."""

    name: str
    title: str
    arguments: tuple[str, ...]
    estimate_seconds: float
    accepts: frozenset[int] = frozenset({0})
    skip: str | None = None
    postpone: str | None = None
    image: str | None = None  # runs in this image, not in this Python
    needs: tuple[str, ...] = ()  # steps that must be done
    output: str | None = None  # the file in the work folder that gets stdout
    starts: str | None = None  # the profile whose engine it starts
    stops: bool = False
    patience_seconds: float = 900.0  # beyond four times the estimate

    @property
    def limit_seconds(self) -> float:
        """After so long the step is stopped: a hang must not hide the rest."""
        return 4 * self.estimate_seconds + self.patience_seconds


def steps_of(settings: Settings, situation: Situation, work: Path) -> list[Step]:
    """Given what was asked for and the machine, return all steps in order."""
    named = _named(settings, situation)
    steps = [
        Step(
            "doctor",
            "host faults, read only",
            ("doctor", "--capture", str(work / "doctor" / "bundle"), *_doctor_host(situation), "--json"),
            60,
            frozenset({0, 20, 21, 22}),
            output="doctor/report.json",
        ),
        *_probes(settings, situation, work),
    ]
    for start in range(1, settings.starts + 1):
        for profile in settings.profiles:
            steps += _engine(settings, situation, work, profile, start, named)
    receipts = work / "receipts"
    traffic = ("--traffic", settings.traffic) if settings.traffic else ()
    steps += [
        Step(
            "decide",
            "baseline or speculation",
            ("decide", str(receipts), *traffic, "--json"),
            5,
            frozenset({0, 22}),
            output="decide.json",
        ),
        Step(
            "report",
            "the report",
            (
                "report",
                str(receipts),
                *traffic,
                "-o",
                str(work / "report.html"),
                "--markdown",
                str(work / "report.md"),
                "--json",
            ),
            5,
            output="report.json",
        ),
    ]
    return steps


def bench_seconds(settings: Settings, *, rehearsal: bool) -> float:
    """Return an estimate of one bench run: every cell, its warm-up, and once more for slowness."""
    one = settings.requests * settings.output_tokens / _SLOWEST_STREAM[rehearsal]
    busy = sum(one * (1 + concurrency / 32) for concurrency in settings.concurrencies)
    return busy * (settings.rounds + 1)


def _named(settings: Settings, situation: Situation) -> tuple[str, ...]:
    words: list[str] = ["--host", situation.host]
    for option, value in (("--model", settings.model), ("--stack", settings.stack)):
        words += [option, value] if value else []
    return tuple(words)


def _doctor_host(situation: Situation) -> tuple[str, ...]:
    # A rehearsal's host file says nothing of what the machine should have.
    return () if situation.rehearsal else ("--host", situation.host, "--model", situation.model)


def _probes(settings: Settings, situation: Situation, work: Path) -> list[Step]:
    postpone = None
    image = None
    if not situation.torch:
        image = situation.image
        if image is None:
            postpone = "no Python with torch here, and the engine image is not built yet"
    base = ("--host", situation.host, "--model", situation.model)
    here = work if image is None else Path("/out")
    rehearsing = ("--backend", "gloo", "--ranks", "2") if situation.rehearsal else ()
    allreduce = Step(
        "probe-allreduce",
        "the fastest correct all-reduce",
        (
            "probe", "allreduce", *base, *rehearsing, "--budget-seconds", str(settings.probe_seconds),
            "--receipts", str(here / "receipts"), "--json",
        ),
        settings.probe_seconds + 120,
        frozenset({0, 20, 21, 22}),
        postpone=postpone,
        image=image,
        output="probe/allreduce.json",
    )  # fmt: skip
    fusion = Step(
        "probe-fusion",
        "acceptance of the fused all-reduce",
        ("probe", "fusion", *base, "--receipts", str(here / "receipts"), "--json"),
        180,
        frozenset({0, 20, 21, 22}),
        skip=NO_GPU if situation.rehearsal else None,
        postpone=None if situation.rehearsal else postpone,
        image=image,
        output="probe/fusion.json",
    )
    return [allreduce, fusion]


def _engine(
    settings: Settings, situation: Situation, work: Path, profile: str, start: int, named: tuple[str, ...]
) -> list[Step]:
    place = f"{profile}-{start}"
    folder = f"engines/{place}"
    plan = Step(
        f"plan-{place}",
        f"the plan of {profile}",
        ("plan", profile, *named, "--json"),
        2,
        output=f"{folder}/plan.json",
    )
    url = settings.servers.get(profile)
    # A server that we start says in its answer where it is and where its key lies.
    key = settings.api_key_file if url else f"{{key:{folder}/up.json}}"
    bench = Step(
        f"bench-{place}",
        f"speed of {profile}" + (f", start {start}" if settings.starts > 1 else ""),
        (
            "bench", url or f"{{url:{folder}/up.json}}",
            "--plan", str(work / folder / "plan.json"),
            "--concurrency", ",".join(str(number) for number in settings.concurrencies),
            "--rounds", str(settings.rounds), "--requests", str(settings.requests),
            "--output-tokens", str(settings.output_tokens),
            "--receipts", str(work / "receipts"), "--server-start", place,
            *(("--api-key-file", key) if key else ()),
            "--json",
        ),
        bench_seconds(settings, rehearsal=situation.rehearsal),
        frozenset({0, 20}),
        needs=(plan.name,) if url else (plan.name, f"up-{place}"),
        output=f"{folder}/bench.json",
    )  # fmt: skip
    if url:
        return [plan, bench]
    if profile not in SERVICES:
        skip = f"no Compose service serves {profile}: start it by hand and give --server {profile}=URL"
        return [plan, replace(bench, skip=skip)]
    build = _BUILD_SECONDS if situation.image is None and start == 1 else 0
    seconds = (_REHEARSAL_START_SECONDS if situation.rehearsal else _LOAD_SECONDS) + build
    asked = () if situation.rehearsal else ("--host", situation.host)
    words = tuple(word for word in named if word not in ("--host", situation.host))
    mode = ("--rehearsal",) if situation.rehearsal else ("--no-rehearsal",)
    service = SERVICES[profile]
    return [
        plan,
        Step(
            f"up-{place}",
            f"start of {profile}, until a completion comes back",
            ("up", "--profile", profile, *asked, *words, *mode, "--json"),
            seconds,
            output=f"{folder}/up.json",
            needs=(plan.name,),
            starts=place,
        ),
        bench,
        # Whatever happened: the engine's log, what it means, and the machine free for the next.
        Step(
            f"log-{place}",
            f"the engine's log of {profile}",
            ("logs", service, "--tail", "20000"),
            10,
            output=f"{folder}/engine.log",
        ),
        Step(
            f"explain-{place}",
            "what the log means",
            ("startup", "explain", str(work / folder / "engine.log"), "--json"),
            10,
            frozenset({0, 20, 21}),
            needs=(f"log-{place}",),
            output=f"{folder}/startup.json",
        ),
        Step(
            f"down-{place}",
            f"stop of {profile}",
            ("down", "--keep-docker", "--json"),
            90,
            output=f"{folder}/down.json",
            stops=True,
        ),
    ]


def has_torch() -> bool:
    """Return whether an interpreter with torch is at hand for the probe's ranks."""
    import importlib.util

    return bool(os.environ.get(PYTHON_VARIABLE)) or importlib.util.find_spec("torch") is not None
