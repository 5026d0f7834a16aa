"""PCIe links: width, generation under load, link errors, ASPM, cards that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.facts.gpu import Gpu
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.pci import PciDevice
from deploy_kit.doctor.model import Finding, Verdict

_PROVE = "measure under load to be sure (`deploy-kit probe allreduce` records the link)"


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what lspci and nvidia-smi say about links."""
    yield from _gone(machine)
    ports = _ports_of_gpus(machine.pci)
    gpus = machine.gpus
    narrow: list[tuple[str, int | None, int | None]] = [
        (d.slot, d.width, d.cap_width) for d in ports if d.width and d.cap_width and d.width < d.cap_width
    ]
    if not any(device.is_gpu for device in machine.pci):
        narrow += [
            (g.label, g.current_width, g.max_width)
            for g in gpus
            if g.current_width and g.max_width and g.current_width < g.max_width
        ]
    # A port above a narrow card repeats the same link.
    cards = [item for item in narrow if item[0] not in {d.slot for d in ports if d.is_bridge}] or narrow
    if cards:
        yield _narrow(cards)
    slow = list(_slow(ports, gpus))
    yield from slow
    if not cards and not slow and (any(d.width for d in ports) or any(g.current_width for g in gpus)):
        yield _healthy(ports, gpus)
    replays = [gpu for gpu in gpus if (gpu.replays or 0) > 100]
    if replays:
        yield Finding(
            "link.replays",
            Verdict.WARN,
            f"{replays[0].label} counts {replays[0].replays} PCIe replays: a link with transmission errors",
            "reseat the card or riser, try another slot or cable; a retimer or lower generation as a"
            " last resort",
            consequence="each replay delays an all-reduce of all ranks",
        )
    aspm = [device for device in ports if device.aspm and "Enabled" in device.aspm]
    if aspm:
        yield Finding(
            "link.aspm",
            Verdict.WARN,
            f"ASPM power saving is on ({aspm[0].aspm}) on {len(aspm)} link{'s' if len(aspm) != 1 else ''}"
            f" of GPUs",
            "boot with pcie_aspm=off, or set the firmware's ASPM to off",
            tuple(f"{device.slot} LnkCtl: ASPM {device.aspm}" for device in aspm[:4]),
            consequence="leaving a link's sleep adds microseconds to small all-reduces",
            ansible="kernel_pcie_aspm",
        )
    policy = machine.settings.aspm_policy if machine.settings else None
    if policy in ("powersave", "powersupersave"):
        yield Finding(
            "link.aspm-policy",
            Verdict.WARN,
            f"the kernel's ASPM policy is {policy}",
            "boot with pcie_aspm.policy=performance or pcie_aspm=off",
            ansible="kernel_pcie_aspm",
        )
    elif policy == "performance":
        yield Finding("link.aspm-policy", Verdict.OK, "the kernel's ASPM policy is performance")


def _gone(machine: Machine) -> Iterator[Finding]:
    gone = [device for device in machine.pci if device.gone]
    if gone:
        yield Finding(
            "link.gone",
            Verdict.FAIL,
            f"{', '.join(device.slot for device in gone[:4])} no longer answers on the bus (rev ff)",
            "power-cycle the machine; reseat the card and check its power cables when it comes back",
            tuple(f"{device.slot} {device.name}" for device in gone[:4]),
        )


def _ports_of_gpus(devices: list[PciDevice]) -> list[PciDevice]:
    """Return the GPUs and the bridges above them; without bus numbers only the GPUs can be told."""
    gpus = [device for device in devices if device.is_gpu]
    return [device for device in devices if device.is_gpu or any(device.leads_to(gpu) for gpu in gpus)]


def _narrow(cards: list[tuple[str, int | None, int | None]]) -> Finding:
    widths = sorted({width or 0 for _, width, _ in cards})
    full = max(cap or 0 for _, _, cap in cards)
    who = "both GPUs" if len(cards) == 2 else f"{len(cards)} GPUs" if len(cards) > 2 else cards[0][0]
    ratio = widths[0] / full
    share = {0.5: "half", 0.25: "a quarter of", 0.125: "an eighth of", 0.0625: "a sixteenth of"}.get(
        ratio, f"{ratio:.2f} of"
    )
    return Finding(
        "link.width",
        Verdict.WARN if ratio >= 0.25 else Verdict.FAIL,
        f"{who} at x{'/x'.join(map(str, widths))} of x{full}: {share} the bandwidth; width does not"
        f" change with load, so"
        " this is real",
        "use a x16 slot, check the firmware's bifurcation, reseat the card or replace the riser",
        tuple(f"{slot}: Width x{width} of x{cap}" for slot, width, cap in cards[:8]),
        consequence="large all-reduces (prefill) take longer in proportion; small ones suffer less",
    )


def _slow(ports: list[PciDevice], gpus: list[Gpu]) -> Iterator[Finding]:
    """A low generation counts only under load; how much the GPU did is in nvidia-smi's output."""
    for gpu in gpus:
        limit = gpu.max_gen
        if gpu.current_gen and limit and gpu.current_gen < limit:
            if gpu.idle is False:
                yield _slow_under_load(gpu.label, gpu.current_gen, limit, gpu)
            elif gpu.idle is None:
                yield _not_told(f"{gpu.label}: generation {gpu.current_gen} of {limit}")
        if gpu.host_max_gen and gpu.device_max_gen and gpu.host_max_gen < gpu.device_max_gen:
            yield Finding(
                "link.slot-generation",
                Verdict.WARN,
                f"{gpu.label} could do PCIe generation {gpu.device_max_gen}, its slot or the firmware allows"
                f" {gpu.host_max_gen}",
                "set the slot's speed to auto or the higher generation in the firmware, or use another"
                " slot; with a riser"
                " or retimer check what it is made for",
                (f"Device Max {gpu.device_max_gen}, Host Max {gpu.host_max_gen}",),
                consequence="half the bandwidth for each generation",
            )
    if gpus and any(gpu.current_gen for gpu in gpus):
        return
    for device in ports:
        if not device.is_gpu or not device.gen or not device.cap_gen or device.gen >= device.cap_gen:
            continue
        idle = next((gpu.idle for gpu in gpus if gpu.idle is not None), None)
        if idle is False:
            yield _slow_under_load(device.slot, device.gen, device.cap_gen, None)
        elif idle is None and device.gen <= 2:
            yield _not_told(f"{device.slot}: generation {device.gen} of {device.cap_gen}")
        elif idle is None:
            yield Finding(
                "link.generation",
                Verdict.WARN,
                f"{device.slot} runs at PCIe generation {device.gen} of {device.cap_gen}; idle GPUs go"
                f" down to 1, so this"
                " looks like a limit of the slot, the riser or the firmware",
                f"set the slot's speed in the firmware, check the riser; {_PROVE}",
                (f"LnkSta generation {device.gen}, LnkCap {device.cap_gen}",),
            )


def _slow_under_load(who: str, found: int, limit: int, gpu: Gpu | None) -> Finding:
    state = (
        f" ({gpu.pstate or ''} {gpu.utilization_percent or ''}{'%' if gpu.utilization_percent else ''})"
        if gpu
        else ""
    )
    return Finding(
        "link.generation-under-load",
        Verdict.FAIL if limit - found >= 3 else Verdict.WARN,
        f"{who} runs at PCIe generation {found} of {limit} under"
        f" load{state.replace('( ', '(').replace(' )', ')')}:"
        " this is not power saving, the link is degraded",
        "reseat the card, check riser and retimer, set the slot's generation in the firmware, look for"
        " AER errors in"
        " `dmesg`",
        (f"PCIe generation current {found}, max {limit}",),
        consequence=f"1/{2 ** (limit - found)} of the bandwidth",
    )


def _not_told(what: str) -> Finding:
    return Finding(
        "link.generation",
        Verdict.UNKNOWN,
        f"{what}: may be idle power saving; the output does not say what the GPU did",
        f"`nvidia-smi -q -d PERFORMANCE,UTILIZATION` beside it, or {_PROVE}",
    )


def _healthy(ports: list[PciDevice], gpus: list[Gpu]) -> Finding:
    width = min(
        [d.width for d in ports if d.is_gpu and d.width]
        or [g.current_width or 0 for g in gpus if g.current_width]
        or [0]
    )
    idle = [g for g in gpus if g.current_gen and g.max_gen and g.current_gen < g.max_gen]
    if idle:
        state = f" ({idle[0].pstate})" if idle[0].pstate else ""
        return Finding(
            "link", Verdict.OK, f"full width (x{width}); low speed is idle power saving{state}", _PROVE,
            (f"generation {idle[0].current_gen} of {idle[0].max_gen}",),
        )  # fmt: skip
    return Finding("link", Verdict.OK, f"full width (x{width}) and speed")
