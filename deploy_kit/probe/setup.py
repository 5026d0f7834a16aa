"""From the command line's words to a run, and from a run to its files."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deploy_kit.configs.catalog import Catalog, load_file
from deploy_kit.configs.schema import Host, Model
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.probe.candidates import (
    AXES,
    OTHERS,
    TUNED_VARIABLES,
    Candidate,
    first_pass,
    grid,
    named_candidates,
    nccl_candidate,
    useful_axes,
)
from deploy_kit.probe.fusion import named_fusions
from deploy_kit.probe.host_file import write_setting
from deploy_kit.probe.report import make_receipt, verdict_lines
from deploy_kit.probe.runner import ANCHOR, ProbeRun, Runner, Say, Settings
from deploy_kit.receipts import write_receipt

PYTHON_VARIABLE = "DEPLOY_KIT_TORCH_PYTHON"
_REHEARSAL_COUNT = 12
_MAX_TOKENS = 65536


@dataclass(frozen=True)
class Request:
    """What the command line asked for, unchecked."""

    host: str | None
    model: str
    tokens: str
    count: int | None
    ranks: int | None
    budget_seconds: float
    candidates: str
    backend: str
    python: str | None
    step_limit_seconds: float
    configs: Path | None
    shared_gpu: bool = False


@dataclass(frozen=True)
class Prepared:
    """A checked request."""

    settings: Settings
    host: Host | None
    model: Model
    names: tuple[str, ...]

    @property
    def host_name(self) -> str:
        """The host's configured name, or "unnamed"."""
        return "unnamed" if self.host is None else self.host.name


def prepare(request: Request, task: Literal["allreduce", "fusion"] = "allreduce") -> Prepared:
    """Check a request against the configurations and the machine; every problem is a `DeployKitError`."""
    catalog = Catalog.find(request.configs)
    model = catalog.load(Model, request.model)
    host = None if request.host is None else catalog.host(request.host)
    python = find_python(request.python)
    backend = choose_backend(request.backend, visible_gpus(), host)
    if request.shared_gpu and backend != "nccl":
        raise DeployKitError(
            "--share-gpu needs a GPU",
            key="--share-gpu",
            found=f"backend {backend}",
            exit_code=ExitCode.NO_GPU,
        )
    ranks = choose_ranks(request.ranks, "shared" if request.shared_gpu else backend, visible_gpus(), host)
    count = request.count if request.count is not None else model.allreduces_per_forward
    if request.count is None and backend == "gloo":
        count = min(count, _REHEARSAL_COUNT)
    _at_least(count, 1, "--count")
    _at_least(request.budget_seconds, 1, "--budget-seconds")
    _at_least(request.step_limit_seconds, 1, "--step-limit-seconds")
    base = {} if host is None else {k: v for k, v in host.nccl.items() if k not in TUNED_VARIABLES}
    settings = Settings(
        hidden=model.hidden_size,
        tokens=parse_tokens(request.tokens),
        count=count,
        ranks=ranks,
        backend=backend,
        python=python,
        budget_seconds=request.budget_seconds,
        step_limit_seconds=request.step_limit_seconds,
        base_environment=base,
        task=task,
        shared_gpu=request.shared_gpu,
    )
    names = tuple(part.strip() for part in request.candidates.split(",") if part.strip())
    return Prepared(settings, host, model, names)


def run_allreduce(prepared: Prepared, say: Say, *, axes: str = "", grid: str = "") -> ProbeRun:
    """Measure what was asked for: named candidates, a whole grid, or a search."""
    settings = prepared.settings
    inherited = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    chosen_axes = parse_axes(axes) or useful_axes({**inherited, **settings.base_environment})
    anchor = [nccl_candidate({})]
    if grid:
        wanted = [*anchor, *named_candidates(prepared.names, settings.ranks), *_grid(grid)]
    elif prepared.names:
        anchor = [] if settings.shared_gpu else anchor
        wanted = [*anchor, *named_candidates(prepared.names, settings.ranks)]
    else:
        if settings.shared_gpu:
            return Runner(settings, say).measure(OTHERS)
        return Runner(settings, say).search(
            first_pass(chosen_axes, host_environment=_host_setting(prepared)), chosen_axes
        )
    unique = list({candidate.name: candidate for candidate in wanted}.values())
    return Runner(settings, say).measure(unique)


def run_fusion(prepared: Prepared, say: Say) -> ProbeRun:
    """Check and measure the fused operations that were named, or all."""
    return Runner(prepared.settings, say).measure(named_fusions(prepared.names, prepared.settings.ranks))


def keep(
    prepared: Prepared,
    run: ProbeRun,
    summary: Mapping[str, Any],
    *,
    kind: str,
    receipts: Path | None,
    plot: Path | None = None,
    write_host: Path | None = None,
) -> list[str]:
    """Write the receipt, the plots and the host file, as far as asked for; return what was written."""
    receipt = make_receipt(
        run,
        summary,
        kind=kind,
        host_name=prepared.host_name,
        model_name=prepared.model.name,
        command=f"deploy-kit probe {kind}",
    )
    written = []
    if receipts is not None:
        receipts.mkdir(parents=True, exist_ok=True)
        written.append(str(write_receipt(receipts, receipt)))
    if plot is not None:
        from deploy_kit.probe.plot import write_plots

        written += [
            str(path)
            for path in write_plots(plot, summary, _title(prepared, run), verdict_lines(run, summary))
        ]
    if write_host is not None:
        setting = summary["host_setting"]
        if setting.get("candidate") is None:
            raise DeployKitError(
                "no NCCL setting was found to write",
                file=write_host,
                found=setting.get("unknown"),
                remedy="the host file is unchanged; see the candidates' outcomes",
                exit_code=ExitCode.VERDICT_FAIL,
            )
        remark = f"{setting['candidate']}, receipt {receipt.short_id}, {receipt.created_at:%Y-%m-%d}"
        changed = write_setting(write_host, setting["environment"], TUNED_VARIABLES, remark)
        written.append(f"{write_host}{'' if changed else ' (unchanged: it holds this setting already)'}")
    return written


def refuse_early(write_host: Path, prepared: Prepared) -> None:
    """Raise before measuring what would be refused after it: a rehearsal, or a file that is no host file."""
    if prepared.settings.is_rehearsal:
        raise DeployKitError(
            "a rehearsal never decides for real hardware: --write-host needs a run on GPUs",
            key="--write-host",
            found="all ranks on one GPU" if prepared.settings.shared_gpu else "backend gloo",
            remedy="leave --write-host out, or run on the host itself",
            exit_code=ExitCode.USAGE,
        )
    load_file(Host, write_host)


def parse_tokens(text: str) -> tuple[int, ...]:
    """Given "1,3,4", return (1, 3, 4), sorted and each once; anything else is a `DeployKitError`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(
        re.fullmatch(r"[0-9]{1,6}", part) and 1 <= int(part) <= _MAX_TOKENS for part in parts
    ):
        raise DeployKitError(
            "--tokens is a list of token counts",
            key="--tokens",
            found=text or "nothing",
            allowed=f"numbers from 1 to {_MAX_TOKENS}, comma separated, such as 1,3,4,8",
            exit_code=ExitCode.USAGE,
        )
    return tuple(sorted({int(part) for part in parts}))


def parse_axes(text: str) -> list[str]:
    """Given "protocol,channels", return the axes; an unknown one is a `DeployKitError`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in AXES:
            raise DeployKitError(
                f"no such axis: {name}",
                key="--axes",
                found=name,
                allowed=nearest_names(name, list(AXES)) or list(AXES),
                exit_code=ExitCode.USAGE,
            )
    return [axis for axis in AXES if axis in names]


def parse_grid(text: str) -> dict[str, list[str]]:
    """Given "protocol=LL,Simple channels=2,4", return {"protocol": ["LL", "Simple"], …}."""
    found: dict[str, list[str]] = {}
    for part in text.split():
        axis, _, values = part.partition("=")
        parse_axes(axis or "?")
        chosen = [value for value in values.split(",") if value]
        unknown = [value for value in chosen if value not in AXES[axis]]
        if not chosen or unknown:
            raise DeployKitError(
                f"no such value on the axis {axis}: {', '.join(unknown) or 'none given'}",
                key="--grid",
                found=part,
                allowed=list(AXES[axis]),
                exit_code=ExitCode.USAGE,
            )
        found[axis] = chosen
    return found


def find_python(asked: str | None) -> str:
    """Return the interpreter for the ranks: the one asked for, $DEPLOY_KIT_TORCH_PYTHON, or this one if it
    has torch."""
    chosen = asked or os.environ.get(PYTHON_VARIABLE)
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise DeployKitError(
                f"there is no such interpreter: {chosen}",
                key="--python" if asked else PYTHON_VARIABLE,
                found=chosen,
                remedy="name a Python that has torch, for example the engine image's",
                exit_code=ExitCode.INPUT,
            )
        return found
    if importlib.util.find_spec("torch") is None:
        raise DeployKitError(
            "the probe's ranks need torch, and this Python has none",
            key="--python",
            remedy=f"run it in the engine image, or name a Python with torch: --python or {PYTHON_VARIABLE}",
            exit_code=ExitCode.VERDICT_UNKNOWN,
        )
    return sys.executable


def choose_backend(asked: str, gpus: int, host: Host | None) -> Literal["nccl", "gloo"]:
    """Return nccl or gloo; auto is nccl where there are GPUs. A GPU host is never silently rehearsed."""
    if asked == "gloo":
        return "gloo"
    if asked not in ("auto", "nccl"):
        raise DeployKitError(
            f"no such backend: {asked}",
            key="--backend",
            found=asked,
            allowed="auto, nccl, gloo",
            exit_code=ExitCode.USAGE,
        )
    if gpus:
        return "nccl"
    if asked == "nccl" or (host is not None and host.accelerator == "cuda"):
        raise DeployKitError(
            "this machine shows no GPUs",
            key="--backend",
            found="no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides it",
            remedy="run on the host, or rehearse with --backend gloo (which says nothing about GPUs)",
            exit_code=ExitCode.NO_GPU,
        )
    return "gloo"


def choose_ranks(asked: int | None, backend: str, gpus: int, host: Host | None) -> int:
    """Return the number of processes: asked for, the host's tensor parallel size, all GPUs, or two on CPU."""
    ranks = asked
    if ranks is None:
        ranks = host.tensor_parallel if host is not None and host.tensor_parallel > 1 else None
    if ranks is None:
        ranks = gpus if backend == "nccl" else 2
    if ranks < 2 or (backend == "nccl" and ranks > gpus) or ranks > 64:
        raise DeployKitError(
            f"an all-reduce over {ranks} rank{'s' if ranks != 1 else ''} cannot be measured here",
            key="--ranks",
            found=ranks,
            allowed=f"2 to {gpus}, the GPUs of this machine" if backend == "nccl" else "2 to 64",
            exit_code=ExitCode.NO_GPU if backend == "nccl" else ExitCode.USAGE,
        )
    return ranks


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """Return how many GPUs a process of ours would see, from the device files and CUDA_VISIBLE_DEVICES."""
    present = [path for path in devices.glob("nvidia[0-9]*") if re.fullmatch(r"nvidia\d+", path.name)]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return len(present)
    return min(len(present), len([part for part in listed.split(",") if part.strip() not in ("", "-1")]))


def _grid(text: str) -> list[Candidate]:
    return grid(parse_grid(text))


def _host_setting(prepared: Prepared) -> dict[str, str]:
    """The host file's own setting of tuned variables: what would run today."""
    host = prepared.host
    return {} if host is None else {k: v for k, v in host.nccl.items() if k in TUNED_VARIABLES}


def _title(prepared: Prepared, run: ProbeRun) -> str:
    settings = run.settings
    anchor = run.records.get(ANCHOR)
    facts = {} if anchor is None else anchor.facts
    device = facts.get("device", "unknown device")
    if settings.backend != "nccl":
        return f"REHEARSAL (gloo on CPU): all-reduce over {settings.ranks} processes, {prepared.model.name}"
    base = [
        f"{k}={v}"
        for k, v in sorted(settings.environment(nccl_candidate({})).items())
        if k.endswith("_DISABLE")
    ]
    return (
        f"All-reduce over {settings.ranks} x {device}, {prepared.model.name} (hidden {settings.hidden}), "
        f"{settings.count} in one CUDA graph, NCCL {facts.get('nccl', 'unknown')}"
        + (f"\n{' '.join(base)}" if base else "")
    )


def _at_least(value: float, lowest: float, key: str) -> None:
    if not value >= lowest:
        raise DeployKitError(
            f"{key} must be at least {lowest:g}",
            key=key,
            found=value,
            allowed=f"{lowest:g} or more",
            exit_code=ExitCode.USAGE,
        )
