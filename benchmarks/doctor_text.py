"""How fast the doctor reads pasted text: seconds and MB/s for each kind of output, and whether time grows linearly.

    python benchmarks/doctor_text.py [--megabytes 10] [--kind dmesg --kind mixed] [--seed 1] [--write FOLDER]

For each kind: a text of that size made from the seed, the time of cutting it into blocks and of the whole report
(`examine`), and the growth: the time for the whole text over that for a quarter of it, in one run (4 when time
grows linearly). `--write` keeps the texts, for `deploy-kit doctor --from FILE`.
"""

# ruff: noqa: E501  (the lines of logs are data)
from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine
from deploy_kit.runtime.postmortem import remove_secrets

KERNEL = (
    "usb {a}-{b}: new high-speed USB device number {c} using xhci_hcd",
    "EXT4-fs (nvme0n1p{b}): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    'audit: type=1400 audit({n}.{c}:{a}): apparmor="STATUS" operation="profile_load" profile="unconfined" name="docker-default" pid={c}',
    "br-{h}: port {a}(veth{h}) entered blocking state",
    "veth{h}: renamed from eth{a}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{h}: link becomes ready",
    "[UFW BLOCK] IN=eno{a} OUT= MAC= SRC=10.0.{a}.{b} DST=10.0.0.{a} LEN=40 TOS=0x00 PREC=0x00 TTL=245 ID={c} PROTO=TCP SPT={c} DPT={c} WINDOW=1024 RES=0x00 SYN URGP=0",
    "pci 0000:{p}:00.0: [10de:2bb1] type 00 class 0x030000",
    "pci 0000:{p}:00.0: reg 0x{a}4: [mem 0x{h}{h}-0x{h}{h} 64bit pref]",
    "pcieport 0000:{p}:01.1: PME: Signaling with IRQ {c}",
    "nvidia 0000:{p}:00.0: enabling device (0140 -> 0142)",
    "nvme nvme{a}: {c}/0/0 default/read/poll queues",
    "systemd[1]: Started Session {c} of user ubuntu.",
    "perf: interrupt took too long ({c} > {c}), lowering kernel.perf_event_max_sample_rate to {c}",
    "device br-{h} entered promiscuous mode",
    "ACPI: \\_SB_.PC0{a}: _OSC: OS now controls [PCIeHotplug SHPCHotplug PME AER PCIeCapability LTR]",
)
RARE = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)",
    "pcieport 0000:{p}:01.1: AER: Corrected error received: 0000:{p}:00.0",
    "AMD-Vi: Found IOMMU at 0000:{p}:00.2, cap 0x40",
    "iommu: Default domain type: Passthrough (set via kernel command line)",
)
SMI = """GPU 00000000:{p}:00.0
    Product Name                          : NVIDIA RTX PRO 6000 Blackwell Server Edition
    Product Brand                         : NVIDIA RTX
    Display Mode                          : Disabled
    Persistence Mode                      : Enabled
    Addressing Mode                       : HMM
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : {n}
    GPU UUID                              : GPU-{h}-{h}
    PCI
        Bus                               : 0x{p}
        Device                            : 0x00
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
                Device Current            : 1
                Device Max                : 5
                Host Max                  : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
        Replays Since Reset               : 0
        Tx Throughput                     : {c} KB/s
    Fan Speed                             : N/A
    Performance State                     : P8
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 97887 MiB
        Reserved                          : {c} MiB
        Used                              : {c} MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
        Used                              : {a} MiB
    Compute Mode                          : Default
    Utilization
        GPU                               : 0 %
        Memory                            : 0 %
    ECC Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : {a}
    Temperature
        GPU Current Temp                  : {b} C
    GPU Power Readings
        Average Power Draw                : {b}.{a} W
        Current Power Limit               : 600.00 W
        Default Power Limit               : 600.00 W
    Processes                             : None
"""
PCI = """{p}:00.0 VGA compatible controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell] (rev a1) (prog-if 00 [VGA controller])
\tSubsystem: NVIDIA Corporation Device 204b
\tControl: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+
\tLatency: 0, Cache Line Size: 64 bytes
\tRegion 1: Memory at {h}00000000 (64-bit, prefetchable) [size=128G]
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq+
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us
\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, Disabled- CommClk+
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)
\tCapabilities: [134 v1] Physical Resizable BAR
\t\tBAR 1: current size: 128GB, supported: 64MB 128MB 256MB 128GB
\tKernel driver in use: nvidia
"""
NCCL = (
    "box:{c}:{c} [{a}] NCCL INFO Channel 0{a}/04 : {a}[{a}] -> {b}[{b}] via P2P/CUMEM",
    "box:{c}:{c} [{a}] NCCL INFO Trees [0] {a}/-1/-1->{b}->{a} [1] {a}/-1/-1->{b}->{a}",
    "box:{c}:{c} [{a}] NCCL INFO Pattern 4, crossNic 0, nChannels 4, bw 24.000000/24.000000, type SYS/PIX, sameChannels 1",
    "box:{c}:{c} [{a}] NCCL INFO AllReduce: opCount {h} sendbuff 0x{h} recvbuff 0x{h} count {c} datatype 9 op 0 root 0 comm 0x{h} [nranks=8] stream 0x{h}",
)
ENGINE = (
    "[2026-03-02 10:20:{s} TP{a}] Decode batch, #running-req: {b}, #token: {c}, token usage: 0.08, accept len: 2.90, cuda graph: True, gen throughput (token/s): 163.11, #queue-req: 0",
    '[2026-03-02 10:20:{s}] INFO:     127.0.0.1:{c} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "kimi-eagle-1  | [2026-03-02 10:15:{s} TP{a}] Ignore import error when loading sglang.srt.models.x: No module named 'cutlass'",
    "Loading safetensors checkpoint shards:  {b}% Completed | {a}/64 [00:{s}<10:00,  9.6s/it]",
)


class Text:
    """Lines of one kind, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def fill(self, line: str) -> str:
        """Return the line with numbers in place of its letters in braces."""
        draw = self._random.randrange
        return line.format(
            a=draw(8),
            b=draw(8, 99),
            c=draw(1000, 65000),
            n=draw(10**10, 10**11),
            s=f"{draw(60):02d}",
            h=f"{draw(16**8):08x}",
            p=f"{draw(256):02x}",
        )

    def kernel(self, *, head: str = "[{t:12.6f}] ") -> Iterator[str]:
        """Yield lines of dmesg."""
        at = 0.0
        while True:
            at += self._random.random()
            table = RARE if self._random.random() < 0.002 else KERNEL
            yield head.format(t=at) + self.fill(self._random.choice(table)) + "\n"

    def journal(self) -> Iterator[str]:
        """Yield lines of journalctl -k."""
        return self.kernel(head="Mar 02 10:15:01 box1 kernel: ")

    def records(self, record: str) -> Iterator[str]:
        """Yield one record after another."""
        while True:
            yield self.fill(record)

    def lines(self, table: tuple[str, ...]) -> Iterator[str]:
        """Yield lines of a table."""
        while True:
            yield self.fill(self._random.choice(table)) + "\n"

    def words(self) -> Iterator[str]:
        """Yield long lines without a blank, as a pasted certificate or trace has them."""
        while True:
            yield "".join(self._random.choices("abcdefABCDEF0123456789+/_-.:", k=15_000)) + "\n"

    def mixed(self) -> Iterator[str]:
        """Yield pieces of everything, each below its command's name."""
        kinds: dict[str, Iterator[str]] = {
            "sudo dmesg": self.kernel(),
            "nvidia-smi -q": self.records(SMI),
            "lspci -vv": self.records(PCI),
            "docker logs kimi-eagle": self.lines(ENGINE),
            "NCCL_DEBUG=INFO torchrun test.py": self.lines(NCCL),
            "journalctl -k": self.journal(),
        }
        while True:
            for title, source in kinds.items():
                yield f"$ {title}\n"
                for _ in range(self._random.randrange(5, 400)):
                    yield next(source)

    def unmarked(self) -> Iterator[str]:
        """Yield the same without any command's name: one block."""
        return (line for line in self.mixed() if not line.startswith("$ "))


KINDS: dict[str, Callable[[Text], Iterator[str]]] = {
    "dmesg": Text.kernel,
    "journal": Text.journal,
    "nvidia-smi": lambda text: text.records(SMI),
    "lspci": lambda text: text.records(PCI),
    "nccl": lambda text: text.lines(NCCL),
    "engine": lambda text: text.lines(ENGINE),
    "long-words": Text.words,
    "mixed": Text.mixed,
    "mixed-in-one": Text.unmarked,
}


def make_text(kind: str, size_bytes: int, seed: int) -> str:
    """Given a kind of KINDS, return a text of about that size; the same seed gives the same text."""
    pieces: list[str] = []
    size = 0
    for piece in KINDS[kind](Text(seed)):
        pieces.append(piece)
        size += len(piece)
        if size >= size_bytes:
            break
    return "".join(pieces)


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the least time of a few runs: the machine's other work only adds."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
        if times[-1] > 20:
            break
    return min(times)


def main() -> None:
    """Time each kind and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="a folder that keeps the texts")
    given = parser.parse_args()
    size = int(given.megabytes * 10**6)
    print(
        f"{'kind':14} {'MB':>6} {'blocks s':>9} {'report s':>9} {'MB/s':>7} {'growth':>7} {'secrets s':>10}"
    )
    for kind in given.kind or KINDS:
        text = make_text(kind, size, given.seed)
        if given.write is not None:
            given.write.mkdir(parents=True, exist_ok=True)
            (given.write / f"{kind}.txt").write_text(text)
        quarter = text[: len(text) // 4]
        cutting = seconds(lambda text=text: split_blocks(text))  # type: ignore[misc]
        whole = seconds(lambda text=text: examine(split_blocks(text)))  # type: ignore[misc]
        part = seconds(lambda text=quarter: examine(split_blocks(text)))  # type: ignore[misc]
        hiding = seconds(lambda text=text: remove_secrets(text, None))  # type: ignore[misc]
        print(
            f"{kind:14} {len(text) / 1e6:6.1f} {cutting:9.2f} {whole:9.2f} {len(text) / 1e6 / whole:7.1f}"
            f" {whole / part:7.1f} {hiding:10.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
