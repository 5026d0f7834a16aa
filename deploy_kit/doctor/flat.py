"""The facts as one flat table, for `--json`, receipts and people."""

from __future__ import annotations

import re
from typing import Any

from deploy_kit.doctor.checks.isolation import iommu_mode
from deploy_kit.doctor.facts.machine import Machine


def flat_facts(machine: Machine) -> dict[str, Any]:
    """Given a machine's facts, return the ones that were read, by short names; what was not read is left
    out."""
    facts: dict[str, Any] = {"gpus": machine.gpu_count}
    if (topology := machine.topology) is not None:
        facts |= {
            "nics": len(topology.nics),
            "nvlink": topology.nvlink,
            "switch": topology.switch,
            "worst_path": topology.worst_path,
            "numa_groups": topology.numa_groups() or None,
            "cpu_affinity": {str(gpu): cpus for gpu, cpus in topology.cpus.items()} or None,
            "switch_pairs": len(topology.pairs("PIX") + topology.pairs("PXB")),
        }
    if machine.p2p:
        statuses: dict[str, int] = {}
        for matrix in machine.p2p:
            for status in matrix.status.values():
                if status != "X":
                    statuses[status] = statuses.get(status, 0) + 1
        facts["p2p"] = next(iter(statuses)) if len(statuses) == 1 else statuses
    facts |= _gpu_facts(machine) | _pci_facts(machine) | _kernel_facts(machine) | _cpu_facts(machine)
    if machine.nccl:
        transports: dict[str, int] = {}
        for log in machine.nccl:
            for kind, count in log.transports.items():
                transports[kind] = transports.get(kind, 0) + count
        facts |= {
            "nccl": next((log.version for log in machine.nccl if log.version), None),
            "channels": next((log.channels for log in machine.nccl if log.channels), None),
            "transport": max(transports, key=lambda kind: transports[kind]) if transports else None,
            "transports": transports or None,
        }
    if machine.limits is not None:
        facts |= {"memlock_bytes": machine.limits.memlock_bytes, "shm_bytes": machine.limits.shm_bytes}
    if machine.docker is not None:
        facts |= {"docker": machine.docker.version, "docker_runtimes": list(machine.docker.runtimes) or None}
    if machine.environment:
        facts["environment"] = machine.environment
    if machine.nccl_builds:
        facts["nccl_packages"] = {n: v for builds in machine.nccl_builds for n, v in builds.packages} or None
    if machine.storage is not None:
        facts |= {
            "read_bytes_per_second": machine.storage.read_bytes_per_second,
            "memory_available_bytes": machine.storage.memory_available_bytes,
        }
    return {key: value for key, value in facts.items() if value is not None}


def _gpu_facts(machine: Machine) -> dict[str, Any]:
    gpus = machine.gpus
    facts: dict[str, Any] = {
        "driver": next((smi.driver for smi in machine.smi if smi.driver), None),
        "cuda": next((smi.cuda for smi in machine.smi if smi.cuda), None),
    }
    module = machine.driver
    log = machine.log
    if module is not None and module.open_module is not None:
        facts["open_module"] = module.open_module
    elif log is not None and (log.open_module or log.closed_module):
        facts["open_module"] = log.open_module is not None
        facts["driver"] = facts["driver"] or log.open_module or log.closed_module
    if not gpus:
        return facts

    def worst(name: str) -> Any:
        values = [getattr(gpu, name) for gpu in gpus if getattr(gpu, name) is not None]
        return min(values, default=None)

    facts |= {
        "gpu_names": sorted({gpu.name for gpu in gpus if gpu.name}) or None,
        "compute_capability": next((gpu.compute_capability for gpu in gpus if gpu.compute_capability), None),
        "fb_mib": worst("fb_mib"),
        "bar1_mib": worst("bar1_mib"),
        "width": worst("current_width"),
        "max_width": worst("max_width"),
        "max_gen": worst("max_gen"),
        "current_gen": worst("current_gen"),
        "host_max_gen": worst("host_max_gen"),
        "pstate": next((gpu.pstate for gpu in gpus if gpu.pstate), None),
        "power_limit_w": _plain(worst("power_limit_w")),
        "persistence": all(g.persistence for g in gpus)
        if any(g.persistence is not None for g in gpus)
        else None,
        "mig": any(g.mig for g in gpus) if any(g.mig is not None for g in gpus) else None,
    }
    if any(gpu.read_reasons for gpu in gpus):
        active = {reason for gpu in gpus for reason in gpu.active_reasons}
        facts |= {
            "power_brake": "HW Power Brake Slowdown" in active,
            "thermal": any("Thermal" in reason for reason in active),
            "active_reasons": sorted(active),
        }
    return facts


def _pci_facts(machine: Machine) -> dict[str, Any]:
    gpus = [device for device in machine.pci if device.is_gpu]
    facts: dict[str, Any] = {}
    if not any(gpu.current_width for gpu in machine.gpus):
        widths = [device.width for device in gpus if device.width]
        facts["width"] = min(widths, default=None)
        facts["max_width"] = max((device.cap_width for device in gpus if device.cap_width), default=None)
    if not any(gpu.current_gen for gpu in machine.gpus):
        facts["current_gen"] = min((device.gen for device in gpus if device.gen), default=None)
        facts["max_gen"] = max((device.cap_gen for device in gpus if device.cap_gen), default=None)
    if not any(gpu.bar1_mib for gpu in machine.gpus):
        facts["bar1_mib"] = min((device.bar1_mib for device in gpus if device.bar1_mib), default=None)
    if any(device.acs is not None for device in machine.pci):
        facts["acs_redirect"] = any(device.redirects for device in machine.pci)
        facts["acs_redirect_ports"] = [d.slot for d in machine.pci if d.redirects and d.slot] or None
    return {key: value for key, value in facts.items() if value is not None}


def _kernel_facts(machine: Machine) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if (line := machine.command_line) is not None:
        facts |= {
            name: line.parameters.get(name)
            for name in ("iommu", "amd_iommu", "intel_iommu", "iommu.passthrough", "pcie_aspm", "pci")
        }
    mode, _ = iommu_mode(machine)
    facts["iommu_mode"] = mode
    if (log := machine.log) is not None:
        facts["xids"] = sorted({xid.number for xid in log.xids}) or None
        facts["aer_corrected"] = len(log.aer_corrected) or None
        facts["aer_uncorrected"] = len(log.aer_uncorrected) or None
    if (settings := machine.settings) is not None:
        facts |= {
            "numa_balancing": settings.numa_balancing,
            "governor": settings.governors[0] if settings.governors else None,
            "uvm_disable_hmm": settings.hmm_disabled,
        }
    return facts


def _cpu_facts(machine: Machine) -> dict[str, Any]:
    facts: dict[str, Any] = {"virtual": machine.virtual}
    if (cpu := machine.cpu) is not None:
        facts |= {
            "cpu": re.sub(r"\s+\d+-Core Processor$", "", cpu.model) if cpu.model else None,
            "cpus": cpu.cpus,
            "cpus_online": cpu.online_count,
            "cpus_offline": cpu.offline,
            "sockets": cpu.sockets,
            "numa_nodes": cpu.numa_nodes,
            "numa_cpus": {str(node): cpus for node, cpus in cpu.numa_cpus.items()} or None,
        }
    if (numa := machine.numa) is not None:
        facts.setdefault("numa_nodes", len(numa.nodes))
        facts["memoryless_nodes"] = [n.node for n in numa.nodes if n.cpus and n.size_mb == 0] or None
        facts["cpuless_nodes"] = [n.node for n in numa.nodes if n.cpus == () and n.size_mb] or None
    return facts


def _plain(number: float | None) -> int | float | None:
    return int(number) if number is not None and number == int(number) else number
