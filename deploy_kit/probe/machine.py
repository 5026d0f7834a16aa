"""The GPUs' clocks, links and users while measuring, through NVML; only read, never set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Machine:
    """Reads NVML when it is there; else everything is unknown, with the reason."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._nvml: Any = None
        self.unknown: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in self._visible(pynvml)]
        except ImportError:
            self.unknown = "nvidia-ml-py is not installed"
        except Exception as error:  # noqa: BLE001  (NVML's errors are made at run time)
            self._nvml = None
            self.unknown = f"NVML: {error}"

    def facts(self) -> dict[str, Any]:
        """Return what does not change while measuring: names, memory, driver, and who else uses the GPUs."""
        memory = _meminfo()
        facts: dict[str, Any] = {"cpus": os.cpu_count(), "memory_total_bytes": memory.get("MemTotal")}
        if self._nvml is None:
            return facts | {"gpus": None, "unknown": self.unknown}
        nvml = self._nvml
        facts["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        facts["gpus"] = [
            {
                "name": _text(nvml.nvmlDeviceGetName(handle)),
                "memory_bytes": self._try(lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total, handle),
                "max_sm_clock_mhz": self._try(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
                "pcie_generation_max": self._try(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
                "pcie_width_max": self._try(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
                "nvlinks_up": self._nvlinks(handle),
                "other_processes": self._users(handle),
            }
            for handle in self._handles
        ]
        return facts

    def snapshot(self) -> list[dict[str, Any]] | None:
        """Return each GPU's clocks, link, temperature and throttle reasons now; None without NVML."""
        if self._nvml is None:
            return None
        nvml = self._nvml
        return [
            {
                "sm_clock_mhz": self._try(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
                "memory_clock_mhz": self._try(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
                "pcie_generation": self._try(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                "pcie_width": self._try(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
                "temperature_c": self._try(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
                "throttle_reasons": self._try(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            }
            for handle in self._handles
        ]

    def _visible(self, nvml: Any) -> list[int]:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        numbers = [int(part) for part in listed.split(",") if part.strip().isdigit()]
        return (numbers or list(range(nvml.nvmlDeviceGetCount())))[: self._ranks]

    def _users(self, handle: Any) -> list[int] | None:
        processes = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return None if processes is None else [process.pid for process in processes]

    def _nvlinks(self, handle: Any) -> int | None:
        count = 0
        for link in range(18):
            try:
                count += self._nvml.nvmlDeviceGetNvLinkState(handle, link) == self._nvml.NVML_FEATURE_ENABLED
            except self._nvml.NVMLError:
                break
        return count

    def _try(self, read: Any, *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except self._nvml.NVMLError:
            return None


def steady(snapshots: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Given the snapshots of a run, return the range each reading had over all GPUs."""
    found: dict[str, Any] = {}
    for key in ("sm_clock_mhz", "memory_clock_mhz", "pcie_generation", "pcie_width", "temperature_c"):
        values = [gpu[key] for gpus in snapshots for gpu in gpus if gpu.get(key) is not None]
        found[key] = {"lowest": min(values), "highest": max(values)} if values else None
    reasons = [
        gpu["throttle_reasons"]
        for gpus in snapshots
        for gpu in gpus
        if gpu.get("throttle_reasons") is not None
    ]
    combined = 0
    for reason in reasons:
        combined |= int(reason)
    found["throttle_reasons_seen"] = combined if reasons else None
    found["snapshots"] = len(snapshots)
    return found


def available_memory_bytes() -> int | None:
    """Return the memory that new processes can use, from /proc/meminfo; None where there is none."""
    return _meminfo().get("MemAvailable")


def _meminfo() -> dict[str, int]:
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as handle:
            pairs = [line.split(":", 1) for line in handle if ":" in line]
    except OSError:
        return {}
    return {name: int(value.split()[0]) * 1024 for name, value in pairs if value.split()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
