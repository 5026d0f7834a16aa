"""NCCL's own log (NCCL_DEBUG=INFO), and the outputs of transfer tests that prove or refute P2P."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block


@dataclass
class NcclLog:
    """Facts of one NCCL log."""

    title: str = ""
    version: str | None = None
    transports: dict[str, int] = field(default_factory=dict)  # "P2P/CUMEM" → number of lines
    channels: int | None = None
    ring_channels: int | None = None
    ring_bandwidth_gbps: float | None = None
    tree_bandwidth_gbps: float | None = None
    pattern_lines: list[str] = field(default_factory=list)
    disabled_pairs: list[tuple[int, int]] = field(default_factory=list)
    disabled_lines: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    init_started: int = 0
    init_complete: int = 0
    ranks: int | None = None
    nodes: int | None = None
    warnings: list[str] = field(default_factory=list)
    no_algorithm: str | None = None
    iommu_hint: str | None = None
    stalled: str | None = None
    transport_lines: list[str] = field(default_factory=list)
    network_same_host: bool = False


@dataclass(frozen=True)
class Transfer:
    """One transfer that was tried: an all-reduce or a peer copy, with P2P on or off, and how it ended."""

    p2p: bool
    outcome: str  # ok, hang, wrong, crash
    line: str


@dataclass(frozen=True)
class BandwidthTest:
    """p2pBandwidthLatencyTest: off-diagonal medians, GB/s and µs; None where the matrix is not there."""

    bandwidth_off: float | None = None
    bandwidth_on: float | None = None
    latency_off_us: float | None = None
    latency_on_us: float | None = None
    no_access: tuple[str, ...] = ()


_LINE_WORDS = ("NCCL INFO", "NCCL WARN", "NCCL ERROR")
_VERSION = re.compile(r"NCCL version ([\d.]+)")
_DISABLED = re.compile(r"P2P is disabled between connected GPUs (\d+) and (\d+)")
_COLLECTIVE_CHANNELS = re.compile(r"(\d+) coll channels")
_ENVIRONMENT = re.compile(r"(NCCL_\w+) set (?:by environment )?to (\S+)")
_RANKS = re.compile(r"\bnranks (\d+)")
_NODES = re.compile(r"\bnNodes (\d+)")
_HOST = re.compile(r"\s*(\S+?):\d+:\d+ \[\d+\] NCCL")
_VIA = re.compile(
    r"Channel (\d+)(?:/\d+)? ?: ?(\d+)\[\w+\] ?-> ?(\d+)\[\w+\]"
    r" (?:\[(?:send|receive)\] )?via (\S+(?: pointer)?)"
)
_PATTERN = re.compile(r"Pattern (\d+), crossNic \d+, nChannels (\d+), bw (\d{1,9}(?:\.\d{1,9})?)/([\d.]+)")
_STALL = re.compile(
    r"\(?no (?:further|more) (?:line|output|log)s?\b.*|\bhangs?\b.*|\bhung\b.*|never returns?.*|\bstuck\b.*"
    r"|timed? ?out.*(?:all_?reduce|collective|s\b)|Watchdog caught collective operation timeout.*",
    re.IGNORECASE,
)
_STALL_WORDS = (
    "no further ", "no more ", "hang", "hung", "never return", "stuck", "timeout", "time out", "timed out",
    "timedout", "watchdog caught",
)  # fmt: skip


def parse_nccl(block: Block) -> NcclLog | None:
    """Given a log with NCCL_DEBUG=INFO lines, return its facts; None when there are no such lines."""
    log = NcclLog(title=block.title)
    seen = False
    top_channel = -1
    pairs: set[tuple[int, int]] = set()
    if not block.has(*_LINE_WORDS):
        return None
    hosts: set[str] = set()
    stall_words = [word for word in _STALL_WORDS if word in block.lower_text]
    lacks_algorithm = "no algorithm/protocol available" in block.lower_text
    for line in block.lines:
        text = line.strip()
        if "] NCCL" in text and (host := _HOST.match(text)):
            hosts.add(host[1])
        if not ("NCCL " in text and any(word in text for word in _LINE_WORDS)):
            if seen and log.stalled is None and stall_words:
                small = text.lower()
                if any(word in small for word in stall_words) and (stall := _STALL.search(text)):
                    log.stalled = stall[0]
            continue
        seen = True
        if "NCCL version" in text and (version := _VERSION.search(text)):
            log.version = version[1]
        elif " via " in text and (via := _VIA.search(text)):
            kind = via[4]
            top_channel = max(top_channel, int(via[1][:4]))
            log.transports[kind] = log.transports.get(kind, 0) + 1
            if len(log.transport_lines) < 4:
                log.transport_lines.append(text)
        elif "Pattern " in text and (pattern := _PATTERN.search(text)):
            number, channels, bandwidth = int(pattern[1][:3]), int(pattern[2][:4]), float(pattern[3][:12])
            log.pattern_lines.append(text)
            if number == 4:
                log.ring_channels = min(channels, log.ring_channels or channels)
                log.ring_bandwidth_gbps = min(bandwidth, log.ring_bandwidth_gbps or bandwidth)
            elif number in (1, 2, 3):
                log.tree_bandwidth_gbps = min(bandwidth, log.tree_bandwidth_gbps or bandwidth)
        elif "P2P is disabled" in text and (disabled := _DISABLED.search(text)):
            pairs.add((int(disabled[1][:5]), int(disabled[2][:5])))
            if len(log.disabled_lines) < 4:
                log.disabled_lines.append(text)
        elif " coll channels" in text and (coll := _COLLECTIVE_CHANNELS.search(text)):
            log.channels = int(coll[1][:4])
        elif " set " in text and (env := _ENVIRONMENT.search(text)):
            log.environment[env[1]] = env[2].rstrip(".")
        if "Init START" in text:
            log.init_started += 1
        if "Init COMPLETE" in text:
            log.init_complete += 1
        if "nranks " in text and (ranks := _RANKS.search(text)):
            log.ranks = int(ranks[1][:5])
        if "nNodes " in text and (nodes := _NODES.search(text)):
            log.nodes = int(nodes[1][:5])
        if "iommu=pt" in text and log.iommu_hint is None:
            log.iommu_hint = text
        if lacks_algorithm and "no algorithm/protocol available" in text.lower():
            log.no_algorithm = text
        if "NCCL WARN" in text and len(log.warnings) < 20:
            log.warnings.append(text)
    log.disabled_pairs = sorted((min(a, b), max(a, b)) for a, b in pairs)
    if log.channels is None:
        log.channels = log.ring_channels or (top_channel + 1 if top_channel >= 0 else None)
    log.network_same_host = len(hosts) <= 1 and (log.nodes or 1) == 1
    return log if seen else None


@dataclass(frozen=True)
class AllreduceTime:
    """One line of nccl-tests' all_reduce_perf (out of place)."""

    size_bytes: int
    time_us: float
    wrong: int | None


_PERF_ROW = re.compile(
    r"^\s*(\d{1,15})\s+\d{1,15}\s+(?:float|half|bfloat16|double|int8|int32)\s+sum\s+-1\s+(\d{1,9}(?:\.\d{1,6})?)"
    r"\s+[\d.]+\s+[\d.]+\s+(\d{1,9}|N/A)",
    re.ASCII,
)


def parse_allreduce_times(block: Block) -> list[AllreduceTime]:
    """Given all_reduce_perf's table, return its lines: bytes, µs, wrong values (None: not checked)."""
    rows = (match for line in block.lines_with("sum") if (match := _PERF_ROW.match(line)))
    return [AllreduceTime(int(r[1]), float(r[2]), None if r[3] == "N/A" else int(r[3])) for r in rows]


_OK = re.compile(r"\b(?:ok|passed|success(?:ful)?|PASS)\b", re.IGNORECASE)
_WRONG = re.compile(r"\bwrong\b|mismatch|verification (?:error|failed)|incorrect|corrupt", re.IGNORECASE)
_HANG = re.compile(
    r"\bhang|\bhung\b|timed? ?out|no (?:further|more) (?:line|output)|never return|\bstuck\b", re.IGNORECASE
)
_SUBJECT = re.compile(r"all[-_ ]?reduce|broadcast|sendrecv|simpleP2P|peer copy|p2p", re.IGNORECASE)
_NCCL_TESTS = re.compile(r"^\s*#\s*Out of bounds values\s*:\s*(\d+)\s*(OK|FAILED)")
_OFF = re.compile(r"NCCL_P2P_DISABLE(?:=| set by environment to )1")
_SILENCE = re.compile(r"\(no (?:further|more) ")
_NO_TEST = re.compile(r"\[?\s*\d+\.\d+\]|NVRM|(?:BOOT_IMAGE|GPU\d|NIC\d)\b")
_COLLECTIVE = re.compile(r"(?:all[-_ ]?reduce|broadcast|sendrecv|peer copy)\b", re.IGNORECASE)
_VARIABLE = re.compile(r"\w+=")
# In small letters: one of them stands in each line that can say how a transfer ended.
_TRANSFER_WORDS = (
    "out of bounds values", "(no further ", "(no more ", "reduce", "broadcast", "sendrecv", "simplep2p",
    "peer copy", "p2p", "verification error",
)  # fmt: skip


def parse_transfers(block: Block) -> list[Transfer]:
    """Given the output of a transfer test (the probe, nccl-tests, simpleP2P), return what ended how."""
    p2p = not (_OFF.search(block.title) or _OFF.search(block.text) or "P2P off" in block.title)
    transfers = []
    for line in block.lines_with_in_any_case(*_TRANSFER_WORDS):
        text = line.strip()
        if found := _NCCL_TESTS.match(line):
            transfers.append(Transfer(p2p, "ok" if found[2] == "OK" else "wrong", text))
        elif "NCCL INFO" in text or not text:
            continue
        elif _SILENCE.match(text) and "NCCL" in block.text:
            transfers.append(Transfer(p2p, "hang", text))
        elif _NO_TEST.match(text) or "NVIDIA-SMI" in text:
            continue
        elif _SUBJECT.search(text) and not _VARIABLE.match(text):
            if _HANG.search(text):
                transfers.append(Transfer(p2p, "hang", text))
            elif _WRONG.search(text):
                transfers.append(Transfer(p2p, "wrong", text))
            elif _COLLECTIVE.match(text) and _OK.search(text):
                transfers.append(Transfer(p2p, "ok", text))
        elif "Verification error @ element" in text:
            transfers.append(Transfer(p2p, "wrong", text))
    return transfers


def parse_bandwidth_test(block: Block) -> BandwidthTest | None:
    """Given p2pBandwidthLatencyTest's output, return the medians between different GPUs."""
    if "P2P" not in block.text or not block.has("Bandwidth", "Connectivity Matrix"):
        return None
    values: dict[str, list[float]] = {}
    key: str | None = None
    for line in block.lines:
        text = line.strip()
        if "Matrix" in text:
            on, off = "Enabled" in text, "Disabled" in text
            unit = "latency" if "Latency" in text and "(us)" in text else "bandwidth"
            wanted = (on or off) and "Bidirectional" not in text
            key = f"{unit}_{'on' if on else 'off'}" if wanted else None
        elif key is not None and (row := re.match(r"(\d{1,3})((?:\s+[\d.]+)+)\s*$", text, re.ASCII)):
            numbers = [_float(cell) for cell in row[2].split()]
            values.setdefault(key, []).extend(
                number
                for column, number in enumerate(numbers)
                if column != int(row[1]) and number is not None
            )
    denied = tuple(line.strip() for line in block.lines_with("CANNOT Access Peer"))
    if not values and not denied:
        return None
    return BandwidthTest(
        _median(values.get("bandwidth_off")),
        _median(values.get("bandwidth_on")),
        _median(values.get("latency_off")),
        _median(values.get("latency_on")),
        denied,
    )


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text, re.ASCII) else None


def _median(values: list[float] | None) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
