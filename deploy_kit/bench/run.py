"""A whole benchmark: every cell in every round, with the engine's counters around each; then the receipt."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from deploy_kit import __version__
from deploy_kit.bench.answers import Interface
from deploy_kit.bench.counters import Counters, engine_cell, read_counters
from deploy_kit.bench.load import CellRun, Script, Sender, closed_loop, first_error, open_loop
from deploy_kit.bench.measure import cell_round
from deploy_kit.bench.prompts import PromptSet
from deploy_kit.bench.stream import Client, Endpoint
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.metrics.text import parse
from deploy_kit.receipts import Host, Receipt, new_receipt
from deploy_kit.receipts.bench import INTERRUPTED, BenchSubject, BenchSummary, CellRound, Workload

WARM_UP_TOKENS = 32


@dataclass(frozen=True)
class Settings:
    """What to measure. `requests_per_stream` scripts for each stream of a closed loop and round;
    `open_requests` arrivals for each rate and round."""

    concurrencies: tuple[int, ...] = (1, 4, 16)
    rates_per_second: tuple[float, ...] = ()
    rounds: int = 3
    requests_per_stream: int = 4
    open_requests: int = 32
    output_tokens: int = 256
    temperature: float = 0.0
    ignore_eos: bool = True
    seed: int = 1
    retries: int = 2
    timeout_seconds: float = 600.0
    warm_up: bool = True
    unique: bool = True


@dataclass(frozen=True)
class About:
    """What is being measured, as far as it is known: from the plan, or as given on the command line."""

    profile: str
    levers: tuple[str, ...] = ()
    plan_id: str | None = None
    host: str = "unknown"
    host_facts: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    rehearsal: bool = False
    stand_in: str | None = None
    server_start: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerFacts:
    """What the server says of itself."""

    model: str
    sglang_version: str | None = None
    device: str | None = None
    speculative: dict[str, Any] | None = None
    stand_in: str | None = None
    plugin: dict[str, str] = field(default_factory=dict)  # labels of our plug-in's deploy_kit_plugin_info
    start: str | None = None  # SGLang draws a random seed at each start: it tells two starts apart


Progress = Callable[[str, int, int], None]  # what is running, requests done, requests in all


async def bench(
    endpoint: Endpoint,
    prompts: PromptSet,
    settings: Settings,
    about: About,
    *,
    interface: Interface = "openai",
    model: str | None = None,
    api_key: str | None = None,
    metrics_url: str | None = None,
    progress: Progress | None = None,
    keep_finished: bool = False,
) -> Receipt:
    """Given a server and what to measure, measure it and return the receipt.

    Raises `DeployKitError` when the server cannot be reached or refuses the very first requests; later
    failures are counted in the receipt. Cancelled with `keep_finished`, it returns the rounds that were
    finished by then, with a remark that begins with `INTERRUPTED`; the caller has to end by itself then.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    metrics = metrics_url or f"{endpoint.base}/metrics"
    client = Client(endpoint, headers=headers, timeout_seconds=settings.timeout_seconds)
    async with httpx.AsyncClient(headers=headers, timeout=10.0) as reader:
        facts = await read_server_facts(reader, endpoint, model)
        refuse_another_profile(about, facts)
        facts = replace(facts, plugin=await read_plugin(reader, metrics))
        sender = Sender(
            client=client,
            interface=interface,
            model=facts.model,
            output_tokens=settings.output_tokens,
            temperature=settings.temperature,
            ignore_eos=settings.ignore_eos,
            retries=settings.retries,
        )
        cells: list[CellRound] = []
        samples: list[dict[str, Any]] = []
        remark = None
        try:
            await _all_cells(
                sender, prompts, settings, reader, metrics, progress or _silent, cells=cells, samples=samples
            )
        except asyncio.CancelledError:
            if not (keep_finished and cells):
                raise
            loads = len(settings.concurrencies) + len(settings.rates_per_second)
            remark = f"{INTERRUPTED}: {len(cells)} of {settings.rounds * loads} rounds of cells are here"
        finally:
            client.close()
    return _receipt(cells, samples, prompts, settings, about, facts, interface, remark)


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total


async def _all_cells(
    sender: Sender,
    prompts: PromptSet,
    settings: Settings,
    reader: httpx.AsyncClient,
    metrics_url: str,
    progress: Progress,
    *,
    cells: list[CellRound],
    samples: list[dict[str, Any]],
) -> None:
    """Measure every cell in every round; each finished one is added to `cells` and `samples`."""
    loads: list[tuple[int | None, float | None]] = [(c, None) for c in settings.concurrencies]
    loads += [(None, rate) for rate in settings.rates_per_second]
    total = settings.rounds * sum(_requests(load, settings) for load in loads)
    done = 0

    def finished() -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    # Rounds outermost: what drifts over the run falls on every cell alike.
    for round_number in range(settings.rounds):
        for concurrency, rate in loads:
            load = (concurrency, rate)
            what = f"round {round_number + 1}/{settings.rounds}, " + (
                f"C={concurrency}" if concurrency else f"{rate:g}/s"
            )
            progress(what, done, total)
            if settings.warm_up:
                await _warm_up(sender, prompts, settings, concurrency or 1, first=not cells)
            scripts = cell_scripts(prompts, settings, _requests(load, settings), load, round_number)
            before, _ = await scrape(reader, metrics_url)
            run: CellRun
            if concurrency is not None:
                run = await closed_loop(sender, scripts, concurrency, finished=finished)
            else:
                run = await open_loop(
                    sender, scripts, rate or 1.0, seed=settings.seed + round_number, finished=finished
                )
            after, reason = await settled(reader, metrics_url)
            growth = after.since(before) if before is not None and after is not None else None
            good = [sample.answer for sample in run.samples if sample.answer.error is None]
            cells.append(
                cell_round(
                    run.samples,
                    round_number=round_number,
                    interval_seconds=run.interval_seconds,
                    concurrency=concurrency,
                    rate_per_second=rate,
                    engine=engine_cell(
                        growth,
                        requests=len(run.samples),
                        output_tokens=sum(s.answer.output_tokens for s in run.samples),
                        reason=reason,
                    ),
                )
            )
            samples.extend(sample.as_dict(len(cells) - 1) for sample in run.samples)
            if not good and len(cells) == 1:
                raise _nothing_works(first_error(run.samples))


def _requests(load: tuple[int | None, float | None], settings: Settings) -> int:
    concurrency, _ = load
    return settings.open_requests if concurrency is None else concurrency * settings.requests_per_stream


def cell_scripts(
    prompts: PromptSet,
    settings: Settings,
    count: int,
    load: tuple[int | None, float | None],
    round_number: int,
) -> list[Script]:
    """Return the scripts of one cell and round: the same for every profile, since they depend only on the
    prompts, the seed, the load and the round. With `unique`, each begins with a line of its own, or the
    prefix cache would answer in the prefill's stead."""
    draw = random.Random(f"{settings.seed} {load} {round_number}")  # noqa: S311  (an order, not a secret)
    order = list(range(len(prompts.scripts)))
    scripts: list[Script] = []
    for place in range(count):
        if place % len(order) == 0:
            draw.shuffle(order)
        number = order[place % len(order)]
        turns = prompts.scripts[number]
        if settings.unique:
            turns = (f"Letter {draw.randrange(10**6)}.\n\n{turns[0]}", *turns[1:])
        scripts.append((number, turns))
    return scripts


async def _warm_up(
    sender: Sender, prompts: PromptSet, settings: Settings, concurrency: int, *, first: bool
) -> None:
    # Not recorded. The very first one is whole, since a server's first cell is cold in every way.
    tokens = settings.output_tokens if first else min(WARM_UP_TOKENS, settings.output_tokens)
    scripts = [
        (0, (f"Warm-up {i}. {prompts.scripts[i % len(prompts.scripts)][0]}",)) for i in range(concurrency)
    ]
    run = await closed_loop(sender, scripts, concurrency, output_tokens=tokens)
    if first and all(sample.answer.error is not None for sample in run.samples):
        raise _nothing_works(first_error(run.samples))


def _nothing_works(error: str | None) -> DeployKitError:
    text = error or "no answer"
    remedy = "is the server ready? deploy-kit health, and its log, tell"
    if text.startswith(("HTTP 401", "HTTP 403")):
        remedy = "name the file that holds the key with --api-key-file"
    elif text.startswith("HTTP 4"):
        remedy = "the server refuses the request: check --model, --output-tokens and its context length"
    elif "instead of" in text:
        remedy = "this server ends answers by itself: use --no-ignore-eos"
    reached = not text.startswith(("cannot", "the connection", "the server closed"))
    return DeployKitError(
        f"the server answers no request: {text}",
        remedy=remedy,
        exit_code=ExitCode.FAILURE if reached else ExitCode.NOT_READY,
    )


async def scrape(reader: httpx.AsyncClient, url: str) -> tuple[Counters | None, str | None]:
    """Return the counters at `url`, or None and the reason."""
    try:
        page = await reader.get(url, follow_redirects=True)
    except httpx.HTTPError as error:
        return None, f"{url.rpartition('/')[2]}: {type(error).__name__}"
    if page.status_code != 200:
        return None, f"the server shows no metrics (HTTP {page.status_code}): start it with --enable-metrics"
    return read_counters(page.text), None


async def settled(reader: httpx.AsyncClient, url: str) -> tuple[Counters | None, str | None]:
    """Return the counters once two scrapes in a row agree (the last steps of a cell are counted late)."""
    last, reason = await scrape(reader, url)
    for _ in range(10):
        if last is None:
            break
        await asyncio.sleep(0.15)
        now, reason = await scrape(reader, url)
        if now is None or now.values == last.values:
            return now, reason
        last = now
    return last, reason


def refuse_another_profile(about: About, facts: ServerFacts) -> None:
    """Raise `DeployKitError` when what is to be called the baseline is an engine that speculates: its receipt
    would decide against itself."""
    if about.profile == "baseline" and facts.speculative:
        raise DeployKitError(
            "the engine speculates, and what is measured is called the baseline",
            key="--profile, or the plan's",
            found=f"baseline; the engine says speculative_algorithm {facts.speculative.get('algorithm')}",
            remedy="name the profile that is served (deploy-kit status), or bring the baseline up first",
            exit_code=ExitCode.USAGE,
        )


async def read_server_facts(reader: httpx.AsyncClient, endpoint: Endpoint, model: str | None) -> ServerFacts:
    """Return what the server says of itself; the model is asked for unless given."""
    name = model
    if name is None:
        try:
            page = await reader.get(f"{endpoint.base}/v1/models")
            value = page.json() if page.status_code == 200 else {}
            name = value["data"][0]["id"]
        except httpx.HTTPError as error:
            raise DeployKitError(
                f"the server cannot be reached: {type(error).__name__}",
                key="URL",
                found=endpoint.base,
                remedy="is it started, and ready? deploy-kit status tells",
                exit_code=ExitCode.NOT_READY,
            ) from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            if page.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise DeployKitError(
                    "the server refuses the key, or wants one",
                    key="--api-key-file",
                    found=f"HTTP {page.status_code} from /v1/models",
                    remedy="name the key's file: `up` keeps it in var/secrets/api_key",
                    exit_code=ExitCode.FAILURE,
                ) from error
            raise DeployKitError(
                "the server does not say which model it serves",
                key="--model",
                found=f"HTTP {page.status_code} from /v1/models",
                remedy="name it with --model (and the key's file with --api-key-file)",
                exit_code=ExitCode.FAILURE,
            ) from error
    info: dict[str, Any] = {}
    for path in ("/server_info", "/get_server_info"):
        try:
            page = await reader.get(f"{endpoint.base}{path}")
            found = page.json() if page.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            continue
        if isinstance(found, dict):
            info = found
            break
    names = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    speculative = {key: info.get(f"speculative_{key}") for key in names}
    version, device = info.get("version"), info.get("device")
    return ServerFacts(
        model=str(name),
        sglang_version=version if isinstance(version, str) else None,
        device=device if isinstance(device, str) else None,
        speculative=speculative if speculative["algorithm"] else None,
        stand_in=str(info["stand_in"]) if info.get("stand_in") else None,
        start=f"random_seed {info['random_seed']}" if isinstance(info.get("random_seed"), int) else None,
    )


def merged_versions(
    stack: Mapping[str, str], facts: ServerFacts
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Given the versions that the plan's stack pins and what the engine says of itself, return the versions,
    where each is from ("engine" or "stack"), and a remark where they differ; what runs goes first."""
    versions, sources = dict(stack), dict.fromkeys(stack, "stack")
    said = facts.sglang_version or facts.plugin.get("sglang_version")
    if not said:
        return versions, sources, []
    versions["sglang"], sources["sglang"] = said, "engine"
    planned = stack.get("sglang")
    differs = planned is not None and planned != said
    return (
        versions,
        sources,
        [f"the engine is SGLang {said}, the plan's stack pins {planned}"] if differs else [],
    )


def engine_words(facts: ServerFacts) -> dict[str, str]:
    """Given what the engine says of itself, return what no stack pins: its device, our plug-in."""
    words = {"device": facts.device, "plugin_deploy_kit_version": facts.plugin.get("deploy_kit_version"),
             "plugin_hooks": facts.plugin.get("hooks")}  # fmt: skip
    return {name: word for name, word in words.items() if word}


async def read_plugin(reader: httpx.AsyncClient, metrics_url: str) -> dict[str, str]:
    """Return the labels of our plug-in's `deploy_kit_plugin_info`; empty when the page has none."""
    try:
        page = await reader.get(metrics_url, follow_redirects=True)
    except httpx.HTTPError:
        return {}
    for sample in parse(page.text).samples if page.status_code == 200 else ():
        if sample.name == "deploy_kit_plugin_info":
            return dict(sample.labels)
    return {}


def _receipt(
    cells: Sequence[CellRound],
    samples: Sequence[dict[str, Any]],
    prompts: PromptSet,
    settings: Settings,
    about: About,
    facts: ServerFacts,
    interface: Interface,
    remark: str | None,
) -> Receipt:
    versions, versions_from, remarks = merged_versions(about.versions, facts)
    unknown = {} if "sglang" in versions else {"sglang version": "the server does not say"}
    subject = BenchSubject(
        profile=about.profile,
        levers=list(about.levers),
        model=facts.model,
        interface=interface,
        workload=Workload(
            name=prompts.name,
            sha256=prompts.sha256,
            output_tokens=settings.output_tokens,
            temperature=settings.temperature,
            ignore_eos=settings.ignore_eos,
            seed=settings.seed,
        ),
        speculative=facts.speculative,
        server_start=about.server_start or facts.start,
        arguments=list(about.arguments),
        versions_from=versions_from,
        engine=engine_words(facts),
        stand_in=about.stand_in or facts.stand_in,
    )
    errors = Counter(str(sample["error"]) for sample in samples if sample["error"] is not None)
    return new_receipt(
        kind="bench",
        host=Host(name=about.host, facts=dict(about.host_facts)),
        # An engine on CPUs is a rehearsal, whatever the caller says.
        rehearsal=about.rehearsal or facts.device == "cpu" or subject.stand_in is not None,
        plan_id=about.plan_id,
        versions={**versions, "deploy-kit": __version__},
        subject=subject.model_dump(),
        samples=samples,
        summary=BenchSummary(
            cells=list(cells),
            errors=dict(errors),
            unknown=unknown,
            remarks=[*remarks, *([remark] if remark else [])],
        ).model_dump(),
    )
