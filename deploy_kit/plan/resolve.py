"""Resolving names to a plan."""

from __future__ import annotations

from collections.abc import Sequence

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Drafter, Flags, Host, Lever, Model, Profile, Stack
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.checks import refuse_bad_plan
from deploy_kit.plan.flags import (
    make_flags,
    make_model_flags,
    make_numa_flag,
    make_server_flags,
    make_speculation_flags,
)
from deploy_kit.plan.model import Mount, Plan

DEFAULT_PORT = 30000
ENGINE = ("python3", "-m", "sglang.launch_server")
TELEMETRY_PLUGIN = "deploy_kit_telemetry"
REHEARSAL_PLUGIN = "deploy_kit_rehearsal"
DEFAULTS = {
    False: {"host": "rtx-pro-6000-x8", "model": "kimi-k2.5", "stack": "current"},
    True: {"host": "rehearsal", "model": "rehearsal-tiny", "stack": "rehearsal"},
}
FROM_HOST = "from host"


def resolve(
    catalog: Catalog,
    profile: str,
    *,
    host: str | None = None,
    stack: str | None = None,
    model: str | None = None,
    drafter: str | None = None,
    levers: Sequence[str] = (),
    address: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
) -> Plan:
    """Given names (or a host file), return the plan.

    What is not named follows the host: a rehearsal host takes the rehearsal stack and model, any other the
    reference ones. Raises `DeployKitError` for unknown names, bad files and combinations that cannot work.
    """
    the_profile = catalog.load(Profile, profile)
    the_host = catalog.host(host if host is not None else DEFAULTS[False]["host"])
    defaults = DEFAULTS[the_host.rehearsal]
    the_stack = catalog.load(Stack, stack or defaults["stack"])
    the_model = catalog.load(Model, model or defaults["model"])
    the_levers = [catalog.load(Lever, name) for name in dict.fromkeys(levers)]
    the_drafter = pick_drafter(the_model, the_profile, drafter)
    return assemble(
        the_stack,
        the_model,
        the_host,
        the_profile,
        the_levers,
        drafter_name=drafter or the_profile.drafter,
        drafter=the_drafter,
        address=address,
        port=port,
    )


def pick_drafter(model: Model, profile: Profile, override: str | None) -> Drafter | None:
    """Given a model and a profile, return the drafter the profile names, or the one asked for instead.

    There is no fall-back: without a draft path SGLang silently loads the target as its own draft.
    """
    if profile.drafter is None:
        if override is not None:
            raise DeployKitError(
                f"profile {profile.name} takes no drafter",
                key="--drafter",
                found=override,
                remedy="leave --drafter out",
                exit_code=ExitCode.CONFIG,
            )
        return None
    name = override or profile.drafter
    if name not in model.drafters:
        known = sorted(model.drafters)
        raise DeployKitError(
            f"model {model.name} has no drafter called {name}",
            file=f"models/{model.name}.toml",
            key="drafters",
            found=name,
            allowed=nearest_names(name, known) or known or "a table [drafters.NAME] with its path",
            remedy="add the drafter to the model's file, or use a profile without one",
            exit_code=ExitCode.UNKNOWN_NAME,
        )
    return model.drafters[name]


def assemble(
    stack: Stack,
    model: Model,
    host: Host,
    profile: Profile,
    levers: Sequence[Lever],
    *,
    drafter_name: str | None,
    drafter: Drafter | None,
    address: str,
    port: int,
) -> Plan:
    """Given loaded configurations, return the plan; pure, so equal inputs give the same id."""
    flags: Flags = {
        **make_model_flags(model, host),
        **make_speculation_flags(profile, drafter),
        **profile.flags,
    }
    for lever in levers:
        flags.update(lever.flags)
    if flags.get("numa-node") == FROM_HOST:
        flags["numa-node"] = make_numa_flag(host)
    flags.update(make_server_flags(address=address, port=port))
    refuse_bad_plan(stack, model, host, profile, levers, flags)
    return Plan(
        profile=profile.name,
        stack=stack.name,
        model=model.name,
        host=host.name,
        levers=tuple(lever.name for lever in levers),
        drafter=drafter_name if drafter is not None else None,
        rehearsal=host.rehearsal,
        served_model_name=model.served_name,
        image=stack.image,
        port=port,
        gpus=host.tensor_parallel if host.accelerator == "cuda" else 0,
        argv=(*ENGINE, *make_flags(flags)),
        environment=make_environment(model, host, levers),
        mounts=make_mounts(host),
        required_paths=make_required_paths(model, drafter),
        cpuset=make_cpuset(host),
        versions=tuple(
            sorted((name, str(version)) for name, version in stack.versions.model_dump().items() if version)
        ),
        known_accept_length=drafter.known_accept_length if drafter is not None else None,
    )


def make_environment(model: Model, host: Host, levers: Sequence[Lever]) -> tuple[tuple[str, str], ...]:
    """Given a model, a host and levers, return the variables to set, later ones winning, sorted by name."""
    plugins = [TELEMETRY_PLUGIN, REHEARSAL_PLUGIN] if host.rehearsal else [TELEMETRY_PLUGIN]
    merged = {
        # SGLang's dependencies ship plug-ins of their own in the same group: ours only.
        "SGLANG_PLUGINS": ",".join(plugins),
        # Without it SGLang's forward times stay zero on GPUs, and nobody would see what a verify costs.
        **({"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"} if host.accelerator == "cuda" else {}),
        **model.environment,
        **host.environment,
        **host.nccl,
    }
    for lever in levers:
        merged.update(lever.environment)
    return tuple(sorted(merged.items()))


def make_mounts(host: Host) -> tuple[Mount, ...]:
    """Given a host, return the folders its engine container sees, read-only."""
    if host.models_directory is None:
        return ()
    return (Mount(source=host.models_directory, target="/models"),)


def make_required_paths(model: Model, drafter: Drafter | None) -> tuple[tuple[str, str], ...]:
    """Given a model and its drafter, return what must exist before the engine starts, as (what, path)."""
    paths = [("model", model.path)]
    if drafter is not None:
        paths.append(("drafter", drafter.path))
    return tuple(paths)


def make_cpuset(host: Host) -> str | None:
    """Given a host, return the CPUs of the NUMA nodes whose GPUs the engine uses; None for all CPUs."""
    used = range(host.tensor_parallel)
    sets = [node.cpus for node in host.numa if any(gpu in used for gpu in node.gpus)]
    return ",".join(sets) or None
