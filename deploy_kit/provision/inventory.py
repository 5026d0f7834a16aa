"""Judging an inventory's variables before any host is touched: names, types, ranges, contradictions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Host, Model
from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.facts.cpu import expand_cpus
from deploy_kit.doctor.model import Verdict
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.provision.variables import DOCTOR_VARIABLES, Variables

# Words of the kernel's command line that variables of their own decide.
MANAGED_PARAMETERS = {
    "iommu": "kernel_iommu",
    "amd_iommu": "kernel_iommu",
    "intel_iommu": "kernel_iommu",
    "iommu.passthrough": "kernel_iommu",
    "pcie_aspm": "kernel_pcie_aspm",
    "numa_balancing": "kernel_numa_balancing",
}
_RANGES: dict[str, tuple[int, int, str]] = {
    "pcie_host_huge_pages": (0, 1_048_576, "pages of 2 MiB"),
    "nvidia_driver_power_limit": (0, 1200, "watts a GPU; 0 leaves it"),
    "container_engine_log_files": (1, 100, "files"),
    "model_store_free_margin_gb": (0, 10_000, "GB"),
    "provision_reboot_seconds": (60, 7200, "seconds"),
}
for _name in (
    "roll_port",
    "roll_metrics_port",
    "gateway_port",
    "gateway_metrics_port",
    "monitoring_prometheus_port",
    "monitoring_alertmanager_port",
    "monitoring_grafana_port",
    "monitoring_node_port",
    "monitoring_dcgm_port",
):
    _RANGES[_name] = (1, 65_535, "for a port")
_IMAGE = (r"([^\s@]+(@sha256:[0-9a-f]{64})?)?", "a name, by digest NAME@sha256: and 64 hexadecimal digits")
_PATTERNS: dict[str, tuple[str, str]] = {
    "nvidia_driver_version": (r"(\d{3}\.\d{1,3}(\.\d{1,3})?)?", ("a driver version such as 580.95.05, in "
        "quotes")),
    "nvidia_driver_branch": (r"\d{3}(-server)?", "a branch such as 580 or 580-server, in quotes"),
    "container_engine_shm_size": (r"[1-9]\d{0,5}[mg]", "a size such as 32g"),
    "container_engine_log_size": (r"[1-9]\d{0,5}[kmg]", "a size such as 50m"),
    "nvidia_driver_registry_dwords": (
        r"(\w+=(0x[0-9a-fA-F]+|\d+)(;\w+=(0x[0-9a-fA-F]+|\d+))*)?",
        "words such as Name=0x11;Other=1",
    ),
    "engine_image": _IMAGE,
    "roll_image": _IMAGE,
}  # fmt: skip
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "path": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}
_BOOL_WORDS = {"true", "false", "yes", "no", "on", "off"}
BLACKWELL = (10, 0)


# Roles of ansible/deploy.yml: docs/provision.md does not know their variables.
_DEPLOY_ROLES = ("engine", "gateway", "monitoring", "roll")


def where_listed(name: str) -> str:
    """Return where a variable and its like are described."""
    role = name.partition("_")[0]
    if role in _DEPLOY_ROLES:
        page = "docs/deploy.md" if role == "engine" else "docs/fleet.md"
        return f"ansible/roles/{role}/defaults/main.yml lists what begins with {role}_ ({page})"
    return "docs/provision.md lists every variable of provisioning"


@dataclass(frozen=True)
class Problem:
    """What is wrong with one variable."""

    name: str
    text: str
    found: Any = None
    remedy: str = ""

    def __post_init__(self) -> None:
        if not self.remedy:
            object.__setattr__(self, "remedy", f"correct the inventory; {where_listed(self.name)}")

    def __str__(self) -> str:
        found = "" if self.found is None else f" Found: {self.found!r}."
        return f"{self.name}: {self.text}.{found} Remedy: {self.remedy}"


@dataclass(frozen=True)
class Removed:
    """A variable that was dropped: in which release, and what takes its place."""

    release: str
    instead: str


# Names that earlier releases knew. None has been dropped so far: entries come with the release that drops
# one.
REMOVED: dict[str, Removed] = {}


def problems(
    given: Mapping[str, Any],
    variables: Variables,
    catalog: Catalog,
    removed: Mapping[str, Removed] = REMOVED,
    others: Iterable[str] = (),
) -> list[Problem]:
    """Given the variables that an inventory sets for one host, and the names of its `others`, which
    begin with no role's name, return everything that is wrong with them."""
    found = [*_names(given, variables, removed), *_prefixes(others, variables)]
    sound = {name: value for name, value in given.items() if name in variables.options}
    mistyped = list(_types(sound, variables))
    bad = {problem.name for problem in mistyped}
    settings = _by_role_name({name: value for name, value in sound.items() if name not in bad})
    found += mistyped
    found += _both_names(sound)
    for check in _CHECKS:
        found += check(settings, catalog)
    return found


def refuse(host: str, found: list[Problem], inventory: str | None = None) -> None:
    """Raise one error with every problem of a host's variables, which names the inventory; none: return."""
    if found:
        raise DeployKitError(
            f"the inventory of {host} has {len(found)} problem{'s' if len(found) > 1 else ''}; no host "
            "was touched\n" + "\n".join(f"  - {problem}" for problem in found),
            file=inventory,
            exit_code=ExitCode.CONFIG,
        )


def _names(
    given: Mapping[str, Any], variables: Variables, removed: Mapping[str, Removed]
) -> Iterator[Problem]:
    for name in given:
        if name in removed:
            gone = removed[name]
            yield Problem(name, f"was removed in release {gone.release}", remedy=gone.instead)
        elif name not in variables.options and variables.looks_ours(name):
            near = nearest_names(name, list(variables.options))
            yield Problem(
                name,
                "there is no such variable",
                remedy=f"did you mean {' or '.join(near)}?" if near else "remove it",
            )


def _prefixes(others: Iterable[str], variables: Variables) -> Iterator[Problem]:
    """Names of which only the first word is not a variable's, and nearly is: rol_port. Whatever else somebody
    calls a variable is none of our business."""
    firsts: dict[str, list[str]] = {}
    for name in variables.options:
        first, _, rest = name.partition("_")
        firsts.setdefault(rest, []).append(first)
    for name in others:
        first, _, rest = name.partition("_")
        known = firsts.get(rest, []) if rest and name not in variables.options else []
        near = get_close_matches(first, known, n=1, cutoff=0.8)
        if near:
            yield Problem(name, "there is no such variable", remedy=f"did you mean {near[0]}_{rest}?")


def _types(given: Mapping[str, Any], variables: Variables) -> Iterator[Problem]:
    for name, value in given.items():
        option = variables.options[name]
        if option.secret:
            continue  # its value is not looked at, and never printed
        allowed = _TYPES.get(option.type, (object,))
        if option.choices and isinstance(value, bool) and any(isinstance(c, str) for c in option.choices):
            yield Problem(
                name,
                "YAML reads an unquoted off, on, yes or no as true or false; allowed: "
                f"{_words(option.choices)}",
                value,
                f'put it in quotes: {name}: "off"' if "off" in option.choices else "write it in quotes",
            )
        elif option.type == "bool" and isinstance(value, str) and value.lower() in _BOOL_WORDS:
            continue  # -e name=true arrives as text
        elif option.type == "int" and isinstance(value, str) and re.fullmatch(r"-?\d+", value):
            continue
        elif (isinstance(value, bool) and bool not in allowed and object not in allowed) or not isinstance(
            value, allowed
        ):
            hint = "put it in quotes" if option.type == "str" and isinstance(value, (int, float)) else None
            yield Problem(
                name,
                f"is {_a(type(value).__name__)}, allowed: {option.type}",
                value,
                hint or "",
            )
        elif option.choices and value not in option.choices:
            yield Problem(name, f"is not one of {_words(option.choices)}", value)


def _both_names(given: Mapping[str, Any]) -> Iterator[Problem]:
    for alias, name in DOCTOR_VARIABLES.items():
        if alias != name and alias in given and name in given and given[alias] != given[name]:
            yield Problem(alias, f"and {name} are two names of one variable, with two values", given[alias])


def _by_role_name(given: Mapping[str, Any]) -> dict[str, Any]:
    return {DOCTOR_VARIABLES.get(name, name): value for name, value in given.items()}


def _ranges(settings: Mapping[str, Any], _: Catalog) -> Iterator[Problem]:
    for name, (low, high, unit) in _RANGES.items():
        if name in settings and not low <= int(settings[name]) <= high:
            yield Problem(name, f"allowed are {low} to {high} {unit}", settings[name])
    for name, (pattern, words) in _PATTERNS.items():
        if name in settings and not re.fullmatch(pattern, settings[name], re.ASCII):
            yield Problem(name, f"allowed is {words}", settings[name])


def _engine(settings: Mapping[str, Any], _: Catalog) -> Iterator[Problem]:
    rehearsal = settings.get("engine_rehearsal", "auto")
    if not isinstance(rehearsal, bool) and str(rehearsal).lower() not in ("true", "false", "auto"):
        yield Problem("engine_rehearsal", "is not one of true, false, auto", rehearsal)
    for service, port in settings.get("engine_ports", {}).items():
        if isinstance(port, bool) or not re.fullmatch(r"\d{1,5}", str(port)) or not 1 <= int(port) <= 65_535:
            yield Problem("engine_ports", f"allowed are 1 to 65535 for the port of {service}", port)


def _kernel(settings: Mapping[str, Any], _: Catalog) -> Iterator[Problem]:
    for word in settings.get("pcie_host_kernel_parameters", []):
        if not isinstance(word, str) or not re.fullmatch(r"[\w.-]+(=[^\s\"'`$\\;&|<>()]+)?", word, re.ASCII):
            yield Problem("pcie_host_kernel_parameters", "is a list of words such as name=value", word)
            continue
        key = word.partition("=")[0]
        if key in MANAGED_PARAMETERS:
            other = MANAGED_PARAMETERS[key]
            yield Problem(
                "pcie_host_kernel_parameters",
                f"{word} contradicts {other} = {settings.get(DOCTOR_VARIABLES[other], 'its default')}: "
                "two settings of"
                " one parameter",
                word,
                f"remove it here and set {other}",
            )
    for name in settings.get("pcie_host_sysctls", {}):
        if not re.fullmatch(r"(vm|kernel|net|fs)\.[\w.-]+", str(name)):
            yield Problem("pcie_host_sysctls", "holds names such as vm.swappiness", name)
        elif name == "kernel.numa_balancing":
            yield Problem("pcie_host_sysctls", "kernel.numa_balancing has a variable of its own", name,
                          "set kernel_numa_balancing")  # fmt: skip


def _driver(settings: Mapping[str, Any], catalog: Catalog) -> Iterator[Problem]:
    words = settings.get("nvidia_driver_registry_dwords", "")
    forced = _true(settings.get("nvidia_driver_forced_p2p", False))
    if words and not forced:
        yield Problem(
            "nvidia_driver_registry_dwords",
            "is set, but nvidia_driver_forced_p2p is off: registry words are only for hosts that ask for "
            "forced P2P",
            words,
            "set nvidia_driver_forced_p2p: true for this host, or remove the words",
        )
    if forced and not words:
        yield Problem(
            "nvidia_driver_forced_p2p",
            "is on, but nvidia_driver_registry_dwords holds no words to force it with",
            True,
            "name the registry words that were proven on this board and driver",
        )
    host = _host(settings, catalog)
    if host is not None and host.capability is not None:
        capability = tuple(int(part) for part in host.capability.split("."))
        if capability >= BLACKWELL and not _true(settings.get("nvidia_driver_open_modules", True)):
            yield Problem(
                "nvidia_driver_open_modules",
                f"is off, but {host.name} has Blackwell GPUs ({host.capability}): the closed modules do "
                "not drive them",
                False,
                "leave it on",
            )
    version = settings.get("nvidia_driver_version", "")
    branch = settings.get("nvidia_driver_branch", "")
    if version and branch and version.split(".")[0] != branch.split("-")[0]:
        yield Problem(
            "nvidia_driver_version",
            f"is not of nvidia_driver_branch {branch}",
            version,
            "make both say the same",
        )


def _numa(settings: Mapping[str, Any], catalog: Catalog) -> Iterator[Problem]:
    nodes = settings.get("numa_nodes", [])
    sets: dict[str, set[int]] = {}
    gpus: list[int] = []
    for position, node in enumerate(nodes):
        if (
            not isinstance(node, dict)
            or set(node) != {"node", "gpus", "cpus"}
            or not isinstance(node["gpus"], list)
        ):
            yield Problem(
                "numa_nodes", "each entry has node, gpus and cpus, as [[numa]] in a host file", node
            )
            return
        if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", str(node["cpus"]), re.ASCII):
            yield Problem("numa_nodes", 'cpus is a set such as "0-63,128-191"', node["cpus"])
            return
        sets[f"{node['node']} (entry {position + 1})"] = set(expand_cpus(str(node["cpus"])))
        gpus += [int(gpu) for gpu in node["gpus"]]
    for (one, first), (other, second) in combinations(sets.items(), 2):
        if both := sorted(first & second):
            shown = ", ".join(map(str, both[:6])) + (" …" if len(both) > 6 else "")
            yield Problem("numa_nodes", f"the CPU sets of nodes {one} and {other} overlap: CPU {shown}")
    if len(set(gpus)) != len(gpus):
        yield Problem("numa_nodes", "a GPU belongs to two nodes", sorted(gpus))
    if _true(settings.get("numa_binding", False)) and not _true(settings.get("numa_enabled", True)):
        yield Problem("numa_binding", "is on, but numa_enabled is off: nothing would write the nodes", True)
    host = _host(settings, catalog)
    if nodes and host is not None and sorted(gpus) != list(range(host.gpus)):
        yield Problem(
            "numa_nodes", f"must hold each of the GPUs 0-{host.gpus - 1} of {host.name} once", sorted(gpus)
        )


def _nccl(settings: Mapping[str, Any], _: Catalog) -> Iterator[Problem]:
    environment = settings.get("nccl_env_environment", {})
    for name, value in environment.items():
        if not re.fullmatch(r"NCCL_[A-Z0-9_]+", str(name)):
            yield Problem("nccl_environment", "holds NCCL_* variables only", name)
        elif not isinstance(value, str):
            yield Problem(
                "nccl_environment", f"{name} must be text", value, f'put it in quotes: {name}: "{value}"'
            )
    yield from nccl_problems({str(k): str(v) for k, v in environment.items()})
    if environment and settings.get("nccl_env_receipt"):
        yield Problem(
            "nccl_environment",
            "and nccl_env_receipt are both set: which of them decides is not said",
            sorted(environment),
            "keep the receipt (measured), or the table (chosen by you)",
        )


def nccl_problems(environment: Mapping[str, str], name: str = "nccl_environment") -> list[Problem]:
    """Given NCCL variables, return what the doctor calls a fault in them: NCCL_ALGO alone, for one."""
    if not environment:
        return []
    text = "\n".join(f"{key}={value}" for key, value in environment.items())
    return [
        Problem(name, finding.cause, remedy=finding.remedy or "remove it")
        for finding in examine([Block("env", text)]).findings
        if finding.verdict is Verdict.FAIL and finding.id.startswith("environment.")
    ]


def _containers(settings: Mapping[str, Any], _: Catalog) -> Iterator[Problem]:
    toolkit = _true(settings.get("container_engine_nvidia_toolkit", True))
    if not _true(settings.get("container_engine_nvidia_cdi", True)) and toolkit:
        yield Problem(
            "nvidia_container_cdi",
            "is off, but the engine asks for its GPUs through CDI",
            False,
            "leave it on; nvidia_container_toolkit: false leaves both to you",
        )


def _models(settings: Mapping[str, Any], catalog: Catalog) -> Iterator[Problem]:
    known = {"model", "drafter", "repository", "revision", "checksums"}
    seen: set[tuple[Any, Any]] = set()
    for entry in settings.get("model_store_models", []):
        if not isinstance(entry, dict) or "model" not in entry or set(entry) - known:
            yield Problem("model_store_models", ("each entry has model and may have "
                f"{_words(sorted(known - {'model'}))}"),
                          entry)  # fmt: skip
            continue
        key = (entry["model"], entry.get("drafter"))
        if key in seen:
            yield Problem("model_store_models", "names a model twice", entry["model"])
        seen.add(key)
        try:
            model = catalog.load(Model, str(entry["model"]))
        except DeployKitError as error:
            yield Problem(
                "model_store_models", error.summary, entry["model"], error.allowed or "see configs/models"
            )
            continue
        drafter = entry.get("drafter")
        if drafter is not None and drafter not in model.drafters:
            yield Problem("model_store_models", f"{model.name} has no drafter of that name", drafter,
                          f"one of {_words(sorted(model.drafters))}")  # fmt: skip
        if entry.get("repository") and not re.fullmatch(r"[0-9a-f]{40}", str(entry.get("revision", ""))):
            yield Problem(
                "model_store_models",
                "a download names the commit: revision with 40 hexadecimal digits, so that every host "
                "gets the same",
                entry.get("revision"),
                "take the commit from the hub's page of the model",
            )
    if settings.get("model_store_hub_token") and settings.get("model_store_hub_token_file"):
        yield Problem(
            "model_store_hub_token", "and model_store_hub_token_file are both set", remedy="keep one of them"
        )


def _profile(settings: Mapping[str, Any], catalog: Catalog) -> Iterator[Problem]:
    name = settings.get("provision_host")
    if name:
        try:
            host = catalog.host(str(name))
        except DeployKitError as error:
            yield Problem(
                "provision_host",
                error.summary,
                name,
                f"one of {error.allowed}" if error.allowed else "see configs/hosts",
            )
            return
        if host.rehearsal != _true(settings.get("provision_rehearsal", host.rehearsal)):
            yield Problem(
                "provision_rehearsal",
                f"contradicts provision_host {host.name}, which {'is' if host.rehearsal else 'is not'} a "
                "rehearsal",
                settings.get("provision_rehearsal"),
            )


def _host(settings: Mapping[str, Any], catalog: Catalog) -> Host | None:
    name = settings.get("provision_host", "rtx-pro-6000-x8")
    try:
        return catalog.host(str(name)) if name else None
    except DeployKitError:
        return None  # told by _profile


_CHECKS: tuple[Callable[[Mapping[str, Any], Catalog], Iterator[Problem]], ...] = (
    _ranges, _engine, _profile, _kernel, _driver, _numa, _nccl, _containers, _models,
)  # fmt: skip


def _true(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "yes", "on", "1")


def _words(values: Any) -> str:
    return ", ".join(str(value) for value in values)


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def roles_folder(root: Path) -> Path:
    """Return the folder of roles in a checkout."""
    return root / "ansible/roles"
