"""NVML, read through nvidia-ml-py where there is no nvidia-smi, in the shape of `nvidia-smi --query-gpu`."""

from __future__ import annotations

from typing import Any

from deploy_kit.doctor.sources import NotReadableError

_MIB = 1024**2
_COLUMNS = (
    "index", "name", "pci.bus_id",
    "compute_cap", "memory.total [MiB]", "memory.used [MiB]", "pcie.link.gen.max",
    "pcie.link.gen.current", "pcie.link.width.max",
    "pcie.link.width.current", "pstate", "utilization.gpu [%]",
    "persistence_mode", "power.limit [W]", "power.default_limit [W]", "temperature.gpu",
    "clocks_event_reasons.hw_power_brake_slowdown", "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.sw_thermal_slowdown",
)  # fmt: skip
_POWER_BRAKE, _HW_THERMAL, _SW_THERMAL = 0x80, 0x40, 0x20


def nvml_as_csv() -> str:
    """Return one line a GPU; a value that NVML refuses is [N/A], as nvidia-smi writes it."""
    try:
        import pynvml
    except ImportError as error:
        raise NotReadableError("neither nvidia-smi nor nvidia-ml-py is installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NotReadableError(f"nvidia-smi is not installed, and NVML says: {error}") from error
    try:
        rows = [_row(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise NotReadableError(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()
    return "\n".join([", ".join(_COLUMNS), *rows]) if rows else "No devices were found"


def _row(pynvml: Any, index: int) -> str:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def get(name: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, name)(handle, *arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    memory = get("nvmlDeviceGetMemoryInfo")
    capability = get("nvmlDeviceGetCudaComputeCapability")
    pci = get("nvmlDeviceGetPciInfo")
    utilization = get("nvmlDeviceGetUtilizationRates")
    pstate = get("nvmlDeviceGetPerformanceState")
    persistence = get("nvmlDeviceGetPersistenceMode")
    reasons = get("nvmlDeviceGetCurrentClocksEventReasons")
    limit, default = get("nvmlDeviceGetEnforcedPowerLimit"), get("nvmlDeviceGetPowerManagementDefaultLimit")
    values: list[Any] = [
        index,
        _decoded(get("nvmlDeviceGetName")),
        _decoded(pci.busId) if pci is not None else None,
        ".".join(map(str, capability)) if capability else None,
        memory.total // _MIB if memory is not None else None,
        memory.used // _MIB if memory is not None else None,
        get("nvmlDeviceGetMaxPcieLinkGeneration"),
        get("nvmlDeviceGetCurrPcieLinkGeneration"),
        get("nvmlDeviceGetMaxPcieLinkWidth"),
        get("nvmlDeviceGetCurrPcieLinkWidth"),
        f"P{pstate}" if pstate is not None and 0 <= pstate <= 15 else None,
        utilization.gpu if utilization is not None else None,
        None if persistence is None else ("Enabled" if persistence else "Disabled"),
        None if limit is None else limit / 1000,
        None if default is None else default / 1000,
        get("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        *(_active(reasons, bit) for bit in (_POWER_BRAKE, _HW_THERMAL, _SW_THERMAL)),
    ]
    return ", ".join("[N/A]" if value is None else str(value).replace(",", " ") for value in values)


def _active(reasons: int | None, bit: int) -> str | None:
    return None if reasons is None else ("Active" if reasons & bit else "Not Active")


def _decoded(text: bytes | str | None) -> str | None:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
