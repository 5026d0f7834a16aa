"""The variables an inventory may set: read from the roles' own argument specifications, so that there is one
list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

# The names that the doctor's findings use (docs/doctor.md), and the role's variable that each one sets.
DOCTOR_VARIABLES = {
    "kernel_iommu": "pcie_host_iommu",
    "kernel_pcie_aspm": "pcie_host_aspm",
    "kernel_numa_balancing": "pcie_host_numa_balancing",
    "pcie_disable_acs": "pcie_host_disable_acs",
    "cpu_governor": "pcie_host_cpu_governor",
    "limits_memlock": "pcie_host_memlock",
    "numa_binding": "numa_binding",
    "nvidia_driver": "nvidia_driver_version",
    "nvidia_driver_open_modules": "nvidia_driver_open_modules",
    "nvidia_persistence": "nvidia_driver_persistence",
    "nvidia_power_limit": "nvidia_driver_power_limit",
    "nvidia_uvm_disable_hmm": "nvidia_driver_uvm_disable_hmm",
    "nvidia_container_toolkit": "container_engine_nvidia_toolkit",
    "nvidia_container_cdi": "container_engine_nvidia_cdi",
    "docker_engine": "container_engine_enabled",
    "container_shm_size": "container_engine_shm_size",
    "nccl_environment": "nccl_env_environment",
}


@dataclass(frozen=True)
class Option:
    """One variable: its type in Ansible's words, the values allowed (empty: any) and whether it is a
    secret."""

    type: str
    choices: tuple[Any, ...] = ()
    secret: bool = False


@dataclass(frozen=True)
class Variables:
    """Every variable of every role; `roles` are the roles' names, whose prefix a variable carries."""

    options: Mapping[str, Option]
    roles: frozenset[str] = field(default_factory=frozenset)

    def looks_ours(self, name: str) -> bool:
        """Whether a name that is no option can only be a misspelt one: it begins with a role's name, or looks
        very much like one of the doctor's."""
        return any(name.startswith(f"{role}_") for role in self.roles) or bool(
            get_close_matches(name, DOCTOR_VARIABLES, n=1, cutoff=0.85)
        )


def read_variables(roles: Path) -> Variables:
    """Given the folder of roles, return their variables, and the doctor's names for them."""
    options: dict[str, Option] = {}
    names: set[str] = set()
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        names.add(path.parts[-3])
        try:
            specs = yaml.safe_load(read_text(path))["argument_specs"]
        except (yaml.YAMLError, KeyError, TypeError) as error:
            raise DeployKitError(
                "a role's argument specification cannot be read", file=path, exit_code=ExitCode.CONFIG
            ) from error
        for spec in specs.values():
            for name, option in (spec.get("options") or {}).items():
                options[name] = Option(
                    str(option.get("type", "str")),
                    tuple(option.get("choices", ())),
                    bool(option.get("no_log", False)),
                )
    for alias, name in DOCTOR_VARIABLES.items():
        if name in options:
            options.setdefault(alias, options[name])
    # Variables of the playbooks themselves.
    return Variables(options, frozenset(names | {"provision", "revert"}))
