"""The startup watcher: a state machine fed by log bytes and by what is known of the process and its endpoints.

Death is decided by, in order: the process (it ended), the engine's own words for the end of one of its
processes (whole lines at their beginning, or a traceback with such a header), never by a word in a line.
Memory is constant: rings, counters and a bounded number of failures.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deploy_kit.exit_codes import ExitCode
from deploy_kit.startup.blocks import BEGIN, BlockReader, Failure, Raised
from deploy_kit.startup.causes import CAUSES, Finding, Place, classify, without_advice
from deploy_kit.startup.lines import Line, LineSplitter, parse_line, seconds_between
from deploy_kit.startup.progress import Progress, read_bar
from deploy_kit.startup.status import PHASES

Fact = int | float | str | bool | None

MAX_FAILURES = 24
MAX_RANKS = 72
RING_LINES = 40
RING_CHARACTERS = 400
NCCL_WARNINGS = 12
# Seconds without a sign of life after which a phase counts as hung.
HUNG_AFTER_SECONDS = {
    "starting": 300.0,
    "loading": 900.0,
    "allocating": 300.0,
    "capturing": 900.0,
    "warming": 600.0,
}
HUNG_AFTER_NCCL_SECONDS = 180.0
HUNG_AFTER_COMPILE_SECONDS = 1800.0
_ORDER = {phase: index for index, phase in enumerate(PHASES)}
_VERDICTS = {
    "starting": "starting",
    "loading": "loading",
    "allocating": "loading",
    "capturing": "capturing",
    "warming": "starting",
    "ready": "ready",
    "serving": "ready",
    "draining": "degraded",
    "exited": "degraded",
}
_CASE_PHASES = {
    "starting": "init",
    "loading": "load",
    "allocating": "kv",
    "capturing": "capture",
    "warming": "warmup",
    "ready": "serve",
    "serving": "serve",
    "draining": "shutdown",
    "exited": "shutdown",
}


@dataclass(frozen=True)
class Explanation:
    """The watcher's answer. `verdict`: starting, loading, capturing, ready, degraded, hung or crashed."""

    verdict: str
    phase: str
    cause: str
    cause_id: str | None
    remedy: str | None
    evidence: tuple[str, ...]
    progress: dict[str, Any] | None
    facts: dict[str, Any]
    remarks: tuple[str, ...]
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        return {
            "verdict": self.verdict,
            "phase": self.phase,
            "cause": self.cause,
            "cause_id": self.cause_id,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "progress": self.progress,
            "facts": self.facts,
            "remarks": list(self.remarks),
            "exit_code": self.exit_code,
        }


@dataclass
class _Death:
    """A line by which the engine says that one of its processes ended."""

    kind: str
    text: str
    order: int
    exit_code: int | None = None
    rank: int | None = None


@dataclass
class _Run:
    """What is known of one start (a log may hold several, one after another)."""

    args: dict[str, Fact] = field(default_factory=dict)
    stages: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    progress: Progress | None = None
    failures: list[Failure] = field(default_factory=list)
    failures_left_out: int = 0
    deaths: list[_Death] = field(default_factory=list)
    hints: dict[str, tuple[int, Finding, str]] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    load_seconds: dict[int | None, float] = field(default_factory=dict)
    capture_seconds: dict[int | None, float] = field(default_factory=dict)
    init_begun: bool = False
    init_ended: bool = False
    nccl_seen: bool = False
    compiling: bool = False
    ready: bool = False
    serving: bool = False
    draining: bool = False
    finished: bool = False
    unhealthy: str | None = None
    soft_watchdog: str | None = None
    watchdog: _Death | None = None
    http_errors: int = 0
    accept_lines: int = 0
    accept_useless: int = 0
    ended_code: int | None = None
    oom_killed: bool = False
    life_order: int = 0
    last_stamp: str | None = None
    last_text: str = ""
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=NCCL_WARNINGS))

    @property
    def stage(self) -> tuple[int, int]:
        """The furthest rank's (number of weight loads begun, phase)."""
        return max(self.stages.values(), default=(0, 0))

    @property
    def phase(self) -> str:
        if self.finished or (self.ended_code is not None and not self.deaths):
            return "exited"
        if self.draining:
            return "draining"
        if self.ready:
            return "serving" if self.serving else "ready"
        return PHASES[self.stage[1]]


_ARGS = ("model_path", "served_model_name", "speculative_draft_model_path", "speculative_algorithm", "host", "port",
         "tp_size", "watchdog_timeout", "log_level", "quantization", "nccl_port", "dist_init_addr", "device")  # fmt: skip
_ARG = {
    name: re.compile(rf"(?:[({{,]\s?)'?{name}'?(?:=|: )(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))")
    for name in _ARGS
}
_SECONDS = re.compile(r"(?:elapsed=|Time elapsed: )([\d.]+) s")
_TOKENS = re.compile(r"#tokens: (-?\d+)")
_MAX_TOKENS = re.compile(r"max_total_num_tokens=(-?\d+)")
_PROFILED = re.compile(r"is larger than the profiled value (-?\d+)")
_BIND = re.compile(r"running on (?:https?://)?(\S+)")
_WATCHDOG = re.compile(
    r"(?:(?P<who>[\w ]+?) )?[Ww]atchdog timeout \((?:self\.)?watchdog_timeout=(?P<timeout>[\d.]+)"
    r"(?:, (?:self\.)?soft=(?P<soft>True|False))?"
)
_BATCH_SIZE = re.compile(r"batch_size\(\)=(\d+)")
_DIED = re.compile(r"Rank (\d+) scheduler died during initialization \(exit code: (-?\d+)\)")
_SUBPROCESS = re.compile(r"Subprocess (\S+) \(pid=(\d+)\) crashed with exit code (-?\d+)")
_CONTAINER_EXIT = re.compile(r"(?P<name>[\w.-]+) exited with code (?P<code>\d+)")
_ARGPARSE = re.compile(r"(?:[\w./-]+(?: \w+)?): error: (?P<message>.+)")
_BIND_FAILED = re.compile(
    r"(?:ERROR:\s+)?\[Errno \d+\] error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)"
)
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[\w:.]+)\): (?P<xid>\d+)(?:, (?P<rest>.*))?")
_KERNEL_KILL = re.compile(
    r"(?P<memcg>Memory cgroup )?[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
)
_SILENCE = re.compile(r"--- seconds since last write: (?P<seconds>\d+)")
_NUMA = re.compile(
    r"setting membind: |set_mempolicy: |mbind: |numactl: |libnuma: |<[\d,-]+> is invalid|setting cpu affinity: "
    r"|sched_setaffinity: |.*numactl could not apply"
)
_ACCEPT = re.compile(r"accept len: ([\d.]+)")
_RUNNING = re.compile(r"#running-req: (\d+)")
_HTTP = re.compile(r'INFO:\s+\S+ - "(?P<method>\w+) (?P<path>\S+) HTTP/[\d.]+" (?P<status>\d{3})')
_GRAPH = re.compile(r"Capture (?P<name>[\w -]*?) ?(?:CUDA|cuda|CPU) graph begin")
_FATAL_PYTHON = re.compile(r"Fatal Python error: (?P<what>.+)")
_FAULT_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')
_ODD = re.compile(
    r"Xid|[Kk]illed process|exited with code|: error: |atchdog timeout|error while attempting to bind|oom-kill"
    r"|what\(\):|scheduler died during|batch_size\(\)="
)
_SIGNAL_NAMES = {-3: "SIGQUIT", -6: "SIGABRT", -7: "SIGBUS", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}
_NOT_PERSONAL = re.compile(
    r"(?i)bearer \S+|(?:api[_-]key|token|password)['\"]?\s*[=:]\s*['\"]?[^'\",\s)]{4,}|hf_[A-Za-z0-9]{8,}"
)


class StartupWatcher:
    """Feed it the log (`feed`), and what is known beside it (`note_*`); ask `explain` at any time."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._blocks = BlockReader()
        self._run = _Run()
        self._order = 0
        self._attempts = 1
        self._previous: str | None = None
        self._silent_seconds: float | None = None
        self._fault: Failure | None = None
        self._fault_current = False
        self._abort: Failure | None = None
        self._rings: dict[str, deque[str]] = {}
        self._last_raw = b""
        self._handlers: dict[str, Callable[[Line], None]] = {
            "Init": self._init,
            "Load": self._load,
            "KV": self._kv,
            "Memory": self._memory,
            "Capture": self._capture,
            "Capturing": self._capture,
            "Using": self._using,
            "sglang": self._sglang,
            "Entering": self._compile,
            "Try": self._compile,
            "Engine": self._engine,
            "The": self._the,
            "INFO:": self._info,
            "ERROR:": self._error,
            "Decode": self._decode,
            "Prefill": self._prefill,
            "Received": self._sigquit,
            "SIGQUIT": self._sigquit,
            "SIGTERM": self._sigterm,
            "Gracefully": self._sigterm,
            "Signal": self._sigterm,
            "Subprocess": self._subprocess,
            "RuntimeError:": self._died,
            "Rank": self._died,
            "Killed": self._killed,
            "Health": self._health,
            "Setup": self._setup,
            "Fatal": self._fatal_python,
            "terminate": self._terminate,
            "Some": self._some_weights,
            "---": self._silence,
            "libnuma:": self._numa,
            "setting": self._numa,
            "numactl:": self._numa,
            "set_mempolicy:": self._numa,
            "mbind:": self._numa,
            "sched_setaffinity:": self._numa,
        }

    # ---------------------------------------------------------------- what comes in

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        for raw in self._splitter.feed(chunk):
            self._take(raw)

    def close(self) -> None:
        """Take the last line even though it has no end."""
        raw = self._splitter.take_rest()
        if raw:
            self._take(raw)

    def note_exit(self, code: int, *, oom_killed: bool = False) -> None:
        """The engine's process ended: its exit code (negative: the signal), and whether the kernel killed one
        of its processes for memory. From now on nothing is alive, whatever the log says."""
        self._run.ended_code = code
        self._run.oom_killed = oom_killed

    def note_kernel_kill(self) -> None:
        """The kernel's counters say that a process of ours was killed for memory."""
        self._run.oom_killed = True

    def note_ready(self) -> None:
        """A real completion came back."""
        self._run.ready = True
        self._run.serving = True

    def note_draining(self) -> None:
        """We were asked to stop and passed it on."""
        self._run.draining = True

    def note_silence(self, seconds: float | None) -> None:
        """Nothing observable has advanced for this long (None: something has)."""
        self._silent_seconds = seconds

    def unfinished_progress(self) -> None:
        """Look at a bar that has not been ended yet: bars end only when the next one begins."""
        raw = self._splitter.unfinished()
        if raw.endswith(b"]"):
            bar = read_bar(parse_line(raw).text)
            if bar is not None:
                self._bar(bar[0], parse_line(raw))

    # ---------------------------------------------------------------- one line

    def _take(self, raw: bytes) -> None:
        self._order += 1
        self._silent_seconds = None
        line = parse_line(raw)
        self._keep(line, raw)
        run = self._run
        if line.stamp is not None:
            run.last_stamp = line.stamp
            if line.rank is not None and len(run.ranks) < MAX_RANKS:
                run.ranks.add(line.rank)
        text = line.text
        if not text:
            self._blocks.feed(line)
            return
        if text.startswith("server_args="):
            self._arguments(line)
            return
        if self._fault is not None and self._in_fault(line):
            return
        if not self._blocks.idle or BEGIN in text:
            if self._blocks.feed(line):
                self._block(line)
                return
        else:
            self._blocks.note_opener(line)
        self._plain(line)

    def _plain(self, line: Line) -> None:
        text = line.text
        if "%" in text[:240]:
            bar = read_bar(text)
            if bar is not None:
                self._bar(bar[0], line)
                if bar[1].startswith("["):
                    self._plain(parse_line(bar[1]))
                return
        if line.indented:
            if self._abort is not None and "what():" in text[:12]:
                self._what(text)
            return
        handler = self._handlers.get(text.partition(" ")[0])
        if handler is not None:
            handler(line)
            return
        if text.startswith(("max_total", "[E", "[W", "[F")):
            self._native(line) if text[0] == "[" else self._tokens(line)
            return
        head = text[:600]
        if " NCCL " in head[:120] or head.startswith("NCCL "):
            if "WARN" in head:
                self._run.warnings.append(head)
            self._run.nccl_seen = True
            return
        if _ODD.search(head):
            self._odd(line, head)

    def _keep(self, line: Line, raw: bytes) -> None:
        key = line.stream + (line.tag or "")
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= MAX_RANKS:
                key = ""
            ring = self._rings.setdefault(key, deque(maxlen=RING_LINES))
        ring.append(line.text[:RING_CHARACTERS])
        self._last_raw = raw[:RING_CHARACTERS]
        if line.text and not line.text.startswith("---"):
            self._run.last_text = line.text[:RING_CHARACTERS]

    # ---------------------------------------------------------------- phases

    def _reach(self, phase: str, line: Line, *, new_load: bool = False) -> None:
        run = self._run
        if run.ready and phase != "serving":
            return
        loads, index = run.stages.get(line.rank, (0, 0))
        if new_load:
            target = (loads + 1, _ORDER[phase])
        else:
            target = (loads, max(index, _ORDER[phase])) if _ORDER[phase] >= index else (loads, index)
        if target > (loads, index):
            before = run.stage
            if len(run.stages) < MAX_RANKS or line.rank in run.stages:
                run.stages[line.rank] = target
            if run.stage > before:
                self._alive(line, strong=False)
                if run.stage[1] != before[1] or run.stage[0] != before[0]:
                    run.compiling = False
                    if run.progress is not None and run.progress.kind != "compile":
                        run.progress = None

    def _alive(self, line: Line, *, strong: bool) -> None:
        """A sign of life: tracebacks without a fatal header that are older were of something handled."""
        run = self._run
        run.life_order = self._order
        for failure in run.failures:
            if failure.fatal is None:
                later = seconds_between(failure.stamp, line.stamp)
                if strong or (later is not None and later > 5):
                    failure.fatal = False

    def _arguments(self, line: Line) -> None:
        run = self._run
        if (
            run.deaths
            or run.finished
            or run.ready
            or run.stage > (0, 0)
            or any(f.fatal for f in run.failures)
        ):
            answer = self.explain()
            self._previous = f"{answer.verdict}: {answer.cause}"[:300]
            self._attempts += 1
            self._run = run = _Run()
            self._blocks = BlockReader()
            self._fault = self._abort = None
        for name, pattern in _ARG.items():
            match = pattern.search(line.text)
            if match is not None:
                value = next((group for group in match.groups() if group is not None), "")
                run.args[name] = _value(value) if match.group(3) is not None else value
        run.stages.setdefault(None, (0, 0))

    def _init(self, line: Line) -> None:
        if line.text.startswith(("Init torch distributed begin", "Init parallel begin")):
            self._run.init_begun = True
        elif line.text.startswith(("Init torch distributed ends", "Init parallel ends")):
            self._run.init_ended = True
            self._alive(line, strong=False)

    def _load(self, line: Line) -> None:
        text = line.text
        if text.startswith("Load weight begin"):
            self._run.init_ended = True
            self._reach("loading", line, new_load=True)
        elif text.startswith("Load weight end"):
            self._reach("loading", line)
            match = _SECONDS.search(text)
            if match is not None:
                seconds = self._run.load_seconds
                if line.rank in seconds or len(seconds) < MAX_RANKS:
                    seconds.setdefault(line.rank, float(match.group(1)))
            type_name = re.search(r"type=(\w+)", text)
            if type_name is not None:
                self._run.facts.setdefault("model_class", type_name.group(1))
            self._run.facts["target_loaded"] = True
            self._alive(line, strong=False)

    def _kv(self, line: Line) -> None:
        if "is allocated" in line.text or "VA upper bound" in line.text:
            self._reach("allocating", line)
            match = _TOKENS.search(line.text)
            if match is not None:
                self._run.facts.setdefault("kv_tokens", int(match.group(1)))

    def _memory(self, line: Line) -> None:
        if line.text.startswith("Memory pool end"):
            self._reach("allocating", line)
        elif line.text.startswith(("Memory cgroup out of memory", "Memory cgroup stats")):
            self._odd(line, line.text[:600])

    def _capture(self, line: Line) -> None:
        text = line.text
        if "failed" in text[:60]:
            return
        if "graph begin" in text or "graph bs [" in text or text.startswith("Capturing"):
            self._reach("capturing", line)
            match = _GRAPH.match(text)
            if match is not None:
                self._run.facts["capturing"] = match["name"].strip() or "decode"
        elif "graph end" in text:
            self._reach("capturing", line)
            match = _SECONDS.search(text)
            if match is not None:
                seconds = self._run.capture_seconds
                if line.rank in seconds or len(seconds) < MAX_RANKS:
                    seconds[line.rank] = max(seconds.get(line.rank, 0.0), float(match.group(1)))
            self._alive(line, strong=False)

    def _using(self, line: Line) -> None:
        if line.text.startswith("Using default MoE kernel config"):
            self._run.remarks.setdefault("moe", line.text[:200])

    def _sglang(self, line: Line) -> None:
        if line.text.startswith("sglang is using nccl=="):
            self._run.nccl_seen = True
            self._run.facts["nccl_version"] = line.text.partition("==")[2].strip()
        elif _ODD.search(line.text[:600]):
            self._odd(line, line.text[:600])

    def _compile(self, line: Line) -> None:
        if "JIT" in line.text[:200] or "ompil" in line.text[:200]:
            self._run.compiling = True
            self._run.life_order = self._order

    def _engine(self, line: Line) -> None:
        if line.text.startswith("Engine startup timings"):
            self._reach("warming", line)

    def _tokens(self, line: Line) -> None:
        match = _MAX_TOKENS.match(line.text)
        if match is not None:
            self._run.facts["max_total_num_tokens"] = int(match.group(1))
            self._reach("warming", line)
        profiled = _PROFILED.search(line.text)
        if profiled is not None:
            self._run.facts["profiled_tokens"] = int(profiled.group(1))

    def _the(self, line: Line) -> None:
        if line.text.startswith("The server is fired up and ready to roll"):
            self._run.stages[line.rank] = (self._run.stage[0], _ORDER["warming"])
            self._run.ready = True
            self._run.unhealthy = None
            self._run.progress = None
            self._run.compiling = False
            self._alive(line, strong=True)
        elif line.text.startswith("The memory capacity is unbalanced"):
            self._run.remarks["memory"] = line.text[:200]

    def _info(self, line: Line) -> None:
        text = line.text
        access = _HTTP.match(text)
        if access is not None:
            self._http(line, access)
            return
        rest = text[5:].strip()
        if rest.startswith(("Application startup complete", "Started server process", "Uvicorn running")):
            self._reach("warming", line)
            match = _BIND.search(rest)
            if match is not None:
                self._run.facts["bind"] = match.group(1)
        elif rest.startswith(("Shutting down", "Waiting for application shutdown")):
            self._run.draining = True
        elif rest.startswith(("Finished server process", "Application shutdown complete")):
            self._run.draining = True
            if rest.startswith("Finished"):
                self._run.finished = True

    def _http(self, line: Line, match: re.Match[str]) -> None:
        run = self._run
        status = int(match["status"])
        health = match["path"].startswith(("/health", "/ready"))
        if status >= 500 and not health:
            run.http_errors += 1
        if not run.ready:
            return
        if status == 200:
            if health:
                run.unhealthy = None
            elif match["method"] == "POST":
                run.serving = True
                run.unhealthy = None
                self._alive(line, strong=False)
        elif status == 503 and health:
            run.unhealthy = run.unhealthy or line.text[:300]

    def _decode(self, line: Line) -> None:
        run = self._run
        if not run.ready or not line.text.startswith("Decode batch"):
            return
        run.serving = True
        run.unhealthy = None
        run.soft_watchdog = None
        run.life_order = self._order
        for failure in run.failures:
            if failure.fatal is None:
                failure.fatal = False
        match = _ACCEPT.search(line.text)
        if match is not None:
            length = float(match.group(1))
            run.facts["accept_len"] = length
            if length > 0:
                run.accept_lines += 1
                run.accept_useless += length <= 1.02
        if run.accept_lines and "cuda graph: False" in line.text:
            run.facts["cuda_graph"] = False

    def _prefill(self, line: Line) -> None:
        if self._run.ready:
            self._run.serving = True
            self._run.life_order = self._order

    def _bar(self, progress: Progress, line: Line) -> None:
        run = self._run
        if run.ready:
            return
        if progress.kind == "weights":
            if run.stage[1] < _ORDER["loading"]:
                self._reach("loading", line, new_load=True)
            if run.stage[1] == _ORDER["loading"]:
                if run.progress is None or run.progress != progress:
                    self._alive(line, strong=False)
                run.progress = progress
        elif progress.kind == "capture":
            # The bar comes from rank 0, untagged: it belongs to the furthest rank's load.
            loads, index = run.stage
            if index <= _ORDER["capturing"]:
                run.stages[None] = max(run.stages.get(None, (0, 0)), (loads, _ORDER["capturing"]))
                run.progress = progress
        elif progress.kind == "compile":
            run.compiling = True
            run.progress = progress
        run.life_order = self._order

    # ---------------------------------------------------------------- ends

    def _death(self, kind: str, line: Line, **more: Any) -> _Death:
        death = _Death(kind, line.text[:RING_CHARACTERS], self._order, **more)
        if len(self._run.deaths) < MAX_FAILURES:
            self._run.deaths.append(death)
        return death

    def _sigquit(self, line: Line) -> None:
        text = line.text
        if self._run.draining or "sigquit" not in text.lower()[:40]:
            return
        if text.startswith("Received") and "child" not in text:
            return
        self._death("sigquit", line)

    def _sigterm(self, line: Line) -> None:
        text = line.text
        if text.startswith(("SIGTERM received", "Gracefully exiting", "Signal SIGTERM received")):
            self._run.draining = True

    def _subprocess(self, line: Line) -> None:
        match = _SUBPROCESS.match(line.text)
        if match is None or self._run.draining:
            return
        rank = re.search(r"scheduler_?(\d+)", match.group(1))
        self._death(
            "detokenizer" if "detoken" in match.group(1) else "subprocess",
            line,
            exit_code=int(match.group(3)),
            rank=None if rank is None else int(rank.group(1)),
        )

    def _died(self, line: Line) -> None:
        match = _DIED.search(line.text)
        if match is not None:
            self._death("scheduler", line, exit_code=int(match.group(2)), rank=int(match.group(1)))
            return
        if line.text.startswith("RuntimeError: Initialization failed. Please see"):
            self._death("init-failed", line)

    def _killed(self, line: Line) -> None:
        if line.text == "Killed" or re.match(r"Killed\s+(?:python|sglang|numactl|deploy-kit)", line.text):
            self._death("killed", line, exit_code=-9)
        elif line.text.startswith("Killed process"):
            self._odd(line, line.text[:600])

    def _health(self, line: Line) -> None:
        if line.text.startswith("Health check failed"):
            self._run.unhealthy = line.text[:300]

    def _setup(self, line: Line) -> None:
        if line.text.startswith("Setup Custom allreduce failed"):
            self._run.facts["custom_allreduce"] = False
            self._run.remarks["custom_allreduce"] = (
                "SGLang fell back from custom all-reduce: "
                + line.text[:160]
                + " (host finding: run the host doctor; the driver grants no peer access between the GPUs)"
                if "peer access" in line.text
                else "SGLang fell back from custom all-reduce: " + line.text[:160]
            )

    def _some_weights(self, line: Line) -> None:
        if line.text.startswith("Some weights") and "not initialized" in line.text:
            self._run.facts["weights_not_initialized"] = True
            self._run.remarks["uninitialized"] = line.text[:300]

    def _numa(self, line: Line) -> None:
        if _NUMA.match(line.text):
            self._hint(
                "numa",
                Finding(
                    "numa-refused",
                    f"numactl was refused ({line.text[:120]}): --membind / set_mempolicy is blocked by the"
                    " container's seccomp profile (EPERM or EINVAL), or the node is outside its cpuset",
                ),
                line.text,
            )

    def _hint(self, key: str, finding: Finding, text: str) -> None:
        """Remember a line that is the cause if the engine ends, and nothing if it does not."""
        if len(self._run.hints) < 16:
            self._run.hints.setdefault(key, (self._order, finding, text[:RING_CHARACTERS]))

    def _error(self, line: Line) -> None:
        match = _BIND_FAILED.match(line.text)
        if match is not None:
            port = int(match["port"])
            self._failure_of_line(
                line,
                "OSError",
                f"HTTP port {port} on {match['host']}: address already in use",
                Finding(
                    "port-taken",
                    f"the HTTP port {port} on {match['host']} is in use by another process",
                    {"port": port, "host": match["host"]},
                ),
            )
        elif _ODD.search(line.text[:600]):
            self._odd(line, line.text[:600])

    def _failure_of_line(self, line: Line, type_: str, message: str, finding: Finding | None) -> Failure:
        failure = Failure(line.text[:200], line.rank, line.stamp, True)
        failure.chain.append(Raised(type_, message))
        self._add(failure, line)
        if finding is not None:
            self._hint(f"line{self._order}", finding, line.text)
            failure.header = f"\0line{self._order}"
        return failure

    def _odd(self, line: Line, head: str) -> None:
        run = self._run
        match = _WATCHDOG.match(head)
        if match is not None:
            self._on_watchdog(line, match)
            return
        if "atchdog" in head and line.headed is False and "collective" in head:
            self._native(line)
            return
        size = _BATCH_SIZE.search(head)
        if size is not None:
            run.facts["batch_size"] = int(size.group(1))
            return
        if self._abort is not None and "what():" in head:
            self._what(head)
            return
        xid = _XID.search(head)
        if xid is not None:
            self._on_xid(line, xid)
            return
        kill = _KERNEL_KILL.search(head)
        if kill is not None:
            if re.search(r"sglang|python|deploy|numactl|scheduler|pt_main", kill["name"]):
                run.oom_killed = True
                where = "the container's memory limit" if kill["memcg"] else "the host's memory"
                self._hint(
                    "kernel-kill",
                    Finding(
                        "killed-by-kernel",
                        f"the kernel killed {kill['name']} (pid {kill['pid']}): {where} ran out",
                        {"pid": int(kill["pid"])},
                    ),
                    head,
                )
                self._death("kernel-kill", line, exit_code=-9)
            return
        ended = _CONTAINER_EXIT.search(head)
        if ended is not None and not line.headed:
            code = int(ended["code"])
            run.facts["exit_code"] = code
            if code in (0, 143) or run.draining:
                run.finished = True
            else:
                self._death(
                    "container",
                    line,
                    exit_code=code - 256 if code > 192 else (128 - code if code > 128 else code),
                )
            return
        usage = _ARGPARSE.match(head)
        if usage is not None and not line.headed and not run.ready:
            self._failure_of_line(line, "usage", usage["message"], None)
            return
        bind = _BIND_FAILED.search(head)
        if bind is not None and not line.headed:
            self._error(Line("ERROR: " + head[bind.start() :], stream=line.stream))
            return
        died = _DIED.search(head)
        if died is not None and not line.headed:
            self._died(Line(head, stream=line.stream))

    def _on_watchdog(self, line: Line, match: re.Match[str]) -> None:
        run = self._run
        run.facts["timeout_s"] = _value(match["timeout"])
        soft = match["soft"] == "True"
        run.facts["soft"] = soft
        if soft:
            run.soft_watchdog = line.text[:300]
            return
        if run.watchdog is None:
            run.watchdog = self._death("watchdog", line, rank=line.rank)

    def _on_xid(self, line: Line, match: re.Match[str]) -> None:
        xid = int(match["xid"])
        rest = (match["rest"] or "")[:160]
        facts: dict[str, int | float | str | bool] = {"xid": xid, "pci": match["pci"]}
        if xid in (79, 119, 120, 62, 61, 74, 109, 110, 140, 154):
            finding = Finding(
                "gpu-lost", f"Xid {xid} on PCI {match['pci']}: {rest or 'the GPU is lost'}", facts
            )
        elif xid in (48, 63, 64, 92, 94, 95):
            finding = Finding("gpu-ecc", f"Xid {xid} on PCI {match['pci']}: GPU memory error ({rest})", facts)
        elif xid in (13, 31, 43, 45):
            finding = Finding(
                "cuda-fault", f"Xid {xid} on PCI {match['pci']}: a GPU kernel faulted ({rest})", facts
            )
        else:
            finding = Finding("gpu-lost", f"Xid {xid} on PCI {match['pci']}: {rest}", facts)
        if self._run.hints.get("xid", (0, finding, ""))[1].id != "gpu-lost" and finding.id == "gpu-lost":
            self._run.hints.pop("xid", None)
        self._hint("xid", finding, line.text)
        self._run.facts.update(facts)
        if xid == 79 or "fallen off the bus" in rest:
            self._death("xid", line)

    def _native(self, line: Line) -> None:
        """Lines of PyTorch's C++ side: `[E227 16:30:43.526 ProcessGroupNCCL.cpp:1785] …`."""
        text = line.text
        if text.startswith("[W"):
            return
        if "collective operation timeout" in text or "Timeout at NCCL work" in text:
            finding = classify(text[:1_500], Place())
            if finding is not None:
                operation = re.search(r"OpType=(\w+)", text)
                facts = dict(finding.facts)
                if operation is not None:
                    facts["operation"] = operation.group(1)
                    finding = Finding(
                        "nccl-timeout",
                        f"an {operation.group(1)} did not end in time: a rank did not join it",
                        facts,
                    )
                self._hint("nccl-timeout", finding, text)
                if "nccl-timeout-rank" not in self._run.facts and line.rank is not None:
                    self._run.facts.setdefault("rank", line.rank)
                self._run.watchdog = self._run.watchdog or _Death("nccl-watchdog", text[:400], self._order)
        if "taking the entire process down" in text or "terminated with exception" in text:
            self._death("nccl-abort", line, rank=line.rank)
            if "terminated with exception" in text:
                tail = text.partition("terminated with exception:")[2]
                finding = classify(tail[:1_500], Place(phase=self._run.phase)) if tail else None
                if finding is not None:
                    self._hint("native", finding, text)

    def _terminate(self, line: Line) -> None:
        if line.text.startswith("terminate called"):
            failure = Failure(line.text[:200], line.rank, line.stamp, True)
            name = re.search(r"instance of '([^']+)'", line.text)
            failure.chain.append(Raised(name.group(1) if name else "terminate", ""))
            self._add(failure, line)
            self._abort = failure

    def _what(self, text: str) -> None:
        if self._abort is not None:
            self._abort.chain[-1].message = text.partition("what():")[2].strip()[:2_000]
            self._abort = None

    def _fatal_python(self, line: Line) -> None:
        match = _FATAL_PYTHON.match(line.text)
        if match is None:
            return
        failure = Failure(line.text[:200], line.rank, line.stamp, True)
        failure.chain.append(Raised("FatalPythonError", match["what"]))
        self._add(failure, line)
        self._fault = failure
        self._fault_current = False

    def _in_fault(self, line: Line) -> bool:
        """Lines of faulthandler: only the thread marked Current counts."""
        text = line.text.strip()
        fault = self._fault
        if fault is None:
            return False
        if text.startswith(("Current thread", "Thread 0x")):
            self._fault_current = text.startswith("Current")
            if self._fault_current:
                self._run.facts["thread"] = "the one marked Current"
            return True
        frame = _FAULT_FRAME.match(text)
        if frame is not None:
            if self._fault_current and len(fault.frames) < 24:
                fault.frames.insert(0, (frame["file"], frame["function"]))
            return True
        if text.startswith(("...", "<no Python frame>", "Extension modules", "Python runtime state")):
            return True
        if line.headed:
            return False
        self._fault = None
        return False

    def _silence(self, line: Line) -> None:
        match = _SILENCE.match(line.text)
        if match is not None:
            self._silent_seconds = float(match["seconds"])

    def _block(self, line: Line) -> None:
        begun, completed = self._blocks.begun, self._blocks.completed
        if begun is not None:
            begun.stamp = begun.stamp or self._run.last_stamp
            self._add(begun, line)
        if completed is not None and completed.raised is not None:
            text = completed.raised.text
            if text.startswith("RuntimeError: "):
                self._died(Line(text, completed.rank, stream=line.stream))

    def _add(self, failure: Failure, line: Line) -> None:
        run = self._run
        failure.order = self._order
        failure.phase = run.phase if not run.ready else "serving"
        failure.ready_before = run.ready
        failure.second_load = run.stage[0] >= 2 and PHASES[run.stage[1]] == "loading"
        if run.progress is not None:
            failure.percent = float(run.progress.percent)
        if failure.rank is None and line.rank is not None:
            failure.rank = line.rank
        if len(run.failures) < MAX_FAILURES:
            run.failures.append(failure)
            return
        run.failures_left_out += 1
        # Keep the first ones, and let handled ones make room.
        for index, old in enumerate(run.failures):
            if old.fatal is False:
                del run.failures[index]
                run.failures.append(failure)
                return
        if failure.fatal:
            for index, old in enumerate(run.failures):
                if old.fatal is None:
                    del run.failures[index]
                    run.failures.append(failure)
                    return

    # ---------------------------------------------------------------- the answer

    def ring(self) -> dict[str, list[str]]:
        """Return the last lines of each rank (the key is its tag)."""
        return {key: list(lines) for key, lines in self._rings.items()}

    @property
    def phase(self) -> str:
        """The phase now; a crash found in the log is "exited"."""
        return "exited" if self._dead() else self._run.phase

    @property
    def running_phase(self) -> str:
        """The phase that was reached, whether or not the engine has died in it."""
        return self._run.phase

    @property
    def progress(self) -> Progress | None:
        """The newest reading of the bar of this phase."""
        return self._run.progress

    @property
    def ready_line_seen(self) -> bool:
        """Whether the engine itself said that it is ready."""
        return self._run.ready

    @property
    def unhealthy(self) -> bool:
        """Whether the engine's own last word about its health was bad."""
        return self._run.unhealthy is not None

    def _dead(self) -> bool:
        run = self._run
        if run.ended_code is not None:
            return True
        if run.draining and not any(d.order for d in run.deaths):
            return False
        if run.deaths:
            return True
        return any(self._counts(failure) for failure in run.failures)

    def _counts(self, failure: Failure) -> bool:
        """Whether this failure is, by itself, the end of the engine."""
        run = self._run
        if failure.fatal is True:
            return not (run.draining and not run.deaths)
        if failure.fatal is False or failure.ready_before or run.ready or run.draining:
            return False
        raised = failure.raised
        if raised is None:  # begun, not named yet: wait for it
            return False
        return not raised.type.endswith("Warning")

    def explain(self) -> Explanation:
        """Return the verdict for what has been seen so far."""
        run = self._run
        if run.draining and (run.ended_code is not None or run.finished) and not self._died_while_draining():
            return self._stopped()
        if self._dead() and not (run.ended_code == 0 and run.draining):
            return self._crashed()
        if run.draining:
            return self._answer(
                "degraded", "draining: it was asked to stop and finishes its requests", "stopped"
            )
        threshold = self.hung_after_seconds()
        if self._silent_seconds is not None and not run.ready and self._silent_seconds >= threshold:
            return self._hung(self._silent_seconds)
        if run.ready:
            return self._up()
        return self._coming_up()

    def _died_while_draining(self) -> bool:
        return any(d.kind in ("kernel-kill", "xid") for d in self._run.deaths)

    def hung_after_seconds(self) -> float:
        """Return the seconds without a sign of life after which this phase counts as hung."""
        run = self._run
        if run.compiling:
            return HUNG_AFTER_COMPILE_SECONDS
        phase = PHASES[run.stage[1]]
        if phase == "starting" and run.init_begun and not run.init_ended:
            return HUNG_AFTER_NCCL_SECONDS
        seconds = HUNG_AFTER_SECONDS.get(phase, float("inf"))
        if run.progress is not None and run.progress.seconds_per_item is not None:
            seconds = max(seconds, 10 * run.progress.seconds_per_item)
        return seconds

    def _coming_up(self) -> Explanation:
        run = self._run
        phase = run.phase
        bar = run.progress
        if run.compiling:
            text = "kernel compilation (JIT), which takes minutes the first time"
            if bar is not None and bar.kind == "compile":
                text += f": {bar.percent} % of this shape"
        elif phase == "loading":
            text = "loading weights" + (" of the drafter" if run.stage[0] >= 2 else "")
            if bar is not None:
                text += f": {bar.done} of {bar.total} shards"
        elif phase == "allocating":
            text = "weights are loaded; memory pools are being allocated"
        elif phase == "capturing":
            text = f"capturing CUDA graphs ({run.facts.get('capturing', 'decode')})"
            if bar is not None:
                text += f": {bar.done} of {bar.total}"
        elif phase == "warming":
            text = "the scheduler is up; HTTP and the warm-up request come next; not ready yet"
        elif run.init_begun or run.nccl_seen or run.ranks:
            text = "process groups being made"
            if run.facts.get("custom_allreduce") is False:
                text += "; SGLang fell back from custom all-reduce"
        elif run.args:
            text = "arguments parsed; nothing loaded yet"
        else:
            text = "nothing that names a phase has been printed yet"
        remarks = []
        if run.args.get("log_level") in ("error", "warning", "critical"):
            remarks.append(
                f"log_level={run.args['log_level']}: phase lines will not appear; rely on HTTP health and the process"
            )
        return self._answer(_VERDICTS[phase], text, None, remarks=remarks)

    def _up(self) -> Explanation:
        run = self._run
        ngram = str(run.args.get("speculative_algorithm", "")).upper() == "NGRAM"
        if run.unhealthy is not None:
            return self._answer(
                "degraded",
                "the server is busy: its own health check got no answer in time (a long prefill does that);"
                " the scheduler has not been seen to end",
                "busy",
                evidence=(run.unhealthy,),
                remedy="wait for a decode line or a 200 from /health; when neither comes, look at the GPUs",
            )
        if run.soft_watchdog is not None:
            return self._answer(
                "degraded",
                "a batch took longer than the soft watchdog's limit; nothing was ended",
                "soft-watchdog",
                evidence=(run.soft_watchdog,),
                remedy="look at the batch in the dump; the hard watchdog ends the engine later",
            )
        if run.accept_lines and run.accept_useless == run.accept_lines and not ngram:
            return self._answer(
                "degraded",
                f"serving, but the drafter is useless: accept length {run.facts.get('accept_len')} in every line (no"
                " draft token is accepted)",
                "drafter-useless",
                remedy="deploy-kit drafter check FOLDER (a drafter without lm_head or for another target looks like"
                " this); until then serve the baseline",
            )
        if run.facts.get("weights_not_initialized"):
            return self._answer(
                "degraded",
                "serving, but some weights were not in the checkpoint and are random",
                "weights-incomplete",
                evidence=(run.remarks.get("uninitialized", ""),),
                remedy=CAUSES["weights-mismatch"].remedy,
            )
        handled = sum(1 for failure in run.failures if failure.fatal is not True and failure.ready_before)
        text = "the ready line appeared after HTTP bind and warm-up"
        if handled:
            text = (
                f"{handled} request(s) failed with an exception that was handled"
                + (f" ({run.http_errors} answered with 5xx)" if run.http_errors else "")
                + "; the scheduler is alive"
                + (" (decode line after it)" if run.serving else "")
            )
        return self._answer("ready", text, None)

    def _hung(self, seconds: float) -> Explanation:
        run = self._run
        phase = run.phase
        cause_id = "stalled"
        if phase == "starting" and run.init_begun and not run.init_ended:
            cause_id = "nccl-init-hang"
            text = "NCCL communicator init: no 'Init torch distributed ends' from any rank"
        elif phase == "starting" and run.init_begun:
            text = "no rank has begun to load weights"
        else:
            text = {
                "starting": "nothing was printed since the start",
                "loading": "no shard has been loaded since",
                "allocating": "memory pools are not ready",
                "capturing": "graph capture does not advance: a collective inside it, or a compilation, hangs",
                "warming": "the warm-up request does not come back",
            }.get(phase, "nothing advances")
        return self._answer(
            "hung",
            f"{text}; silent for {seconds:.0f} s",
            cause_id,
            evidence=(run.last_text,),
            facts={"silent_s": int(seconds), "phase": _CASE_PHASES[phase]},
            exit_code=ExitCode.ENGINE_HUNG,
        )

    def _stopped(self) -> Explanation:
        return self._answer(
            "degraded",
            "stopped as asked (SIGTERM); it drained and exited: no crash",
            "stopped",
            phase="exited",
        )

    def _crashed(self) -> Explanation:
        run = self._run
        found = self._findings()
        watchdog = run.watchdog
        exit_codes = [d for d in run.deaths if d.exit_code is not None]
        facts: dict[str, Any] = {}
        if exit_codes:
            facts["exit_code"] = exit_codes[0].exit_code
            if exit_codes[0].rank is not None:
                facts["rank"] = exit_codes[0].rank
        elif run.ended_code is not None:
            facts["exit_code"] = run.ended_code
        best = min(found, key=lambda item: (item[0], item[1]), default=None)
        if watchdog is not None and (best is None or best[0] >= 2 or best[1] > watchdog.order):
            return self._watchdog_answer(watchdog, facts)
        codes = {d.exit_code for d in exit_codes} | {run.ended_code}
        if best is None or best[0] >= 2:
            killed = self._killed_answer(codes, facts, best is not None and best[0] < 3)
            if killed is not None:
                return killed
        if best is None:
            last = run.deaths[0].text if run.deaths else run.last_text
            evidence = [d.text for d in run.deaths[:2]] + [run.last_text]
            text = "the engine ended without saying why"
            if run.deaths and run.deaths[0].kind == "sigquit":
                text = "a child process failed, and its own traceback is not in this log"
            elif run.ended_code is not None:
                text += f" (exit code {run.ended_code}), last phase {self._last_phase()}"
            del last
            return self._answer(
                "crashed",
                text,
                "unknown",
                evidence=tuple(dict.fromkeys(e for e in evidence if e)),
                facts=facts,
            )
        _priority, _order, finding, failure, evidence_lines = best
        text = finding.text
        if failure is not None:
            if failure.rank is not None:
                facts["rank"] = failure.rank
            facts["phase"] = self._failure_phase(finding.id, failure)
            if failure.percent is not None and facts["phase"] == "load":
                facts["percent"] = int(failure.percent)
        facts.update(finding.facts)
        who = []
        if facts.get("gpu") is not None and finding.id.startswith("oom"):
            who.append(f"GPU {facts['gpu']} first")
        elif failure is not None and failure.rank is not None and finding.id != "load-barrier":
            who.append(f"rank TP{failure.rank} first")
        if who:
            text += ", " + ", ".join(who)
        follow = [d for d in exit_codes if d.exit_code == -3]
        if follow:
            text += "; exit -3 is the SIGQUIT that followed"
        if run.facts.get("profiled_tokens") is not None and finding.id == "no-kv-room":
            negative = int(run.facts["profiled_tokens"] or 0) < 0
            text += f" (profiled tokens {'negative: ' if negative else ''}{run.facts['profiled_tokens']})"
        return self._answer("crashed", text, finding.id, evidence=evidence_lines, facts=facts)

    def _failure_phase(self, cause_id: str, failure: Failure) -> str:
        if cause_id in ("oom-load", "load-barrier", "bus-error", "weights-incomplete"):
            return "load"
        if cause_id in ("oom-capture", "capture-failed"):
            return "capture"
        if cause_id in ("no-kv-room", "oom-kv"):
            return "kv"
        return _CASE_PHASES[failure.phase]

    def _last_phase(self) -> str:
        run = self._run
        return "serving" if run.ready else PHASES[run.stage[1]]

    def _watchdog_answer(self, watchdog: _Death, facts: dict[str, Any]) -> Explanation:
        run = self._run
        facts.pop("exit_code", None)
        if watchdog.rank is not None:
            facts.setdefault("rank", watchdog.rank)
        hint = run.hints.get("nccl-timeout")
        if hint is not None and watchdog.kind == "nccl-watchdog":
            taken_down = any(
                d.kind in ("nccl-abort", "sigquit", "subprocess", "scheduler") for d in run.deaths
            ) or (run.ended_code is not None)
            facts.update(hint[1].facts)
            return self._answer(
                "crashed" if taken_down else "hung",
                hint[1].text,
                "nccl-timeout",
                evidence=(hint[2],),
                facts=facts,
            )
        size = run.facts.get("batch_size")
        seconds = run.facts.get("timeout_s")
        batch = f"one decode batch of size {size}" if size is not None else "a batch"
        return self._answer(
            "hung",
            f"{batch} made no progress for {seconds} s; killed by its own watchdog",
            "watchdog",
            evidence=(watchdog.text,),
            facts=facts,
            exit_code=ExitCode.ENGINE_HUNG,
        )

    def _killed_answer(self, codes: set[int | None], facts: dict[str, Any], weak: bool) -> Explanation | None:
        run = self._run
        hint = run.hints.get("kernel-kill")
        evidence = tuple(d.text for d in run.deaths[:3])
        if hint is not None:
            return self._answer(
                "crashed",
                hint[1].text,
                "killed-by-kernel",
                evidence=(hint[2], *evidence),
                facts=facts | hint[1].facts,
            )
        if run.oom_killed:
            return self._answer(
                "crashed",
                "the kernel killed a process of the engine for memory (out-of-memory kill counted)",
                "killed-by-kernel",
                evidence=evidence or (run.last_text,),
                facts=facts,
            )
        if -9 in codes or 137 in codes:
            return self._answer(
                "crashed",
                f"a process of the engine was killed with SIGKILL in phase {self._last_phase()}: nearly always the"
                " kernel's OOM killer (host memory or the container's limit); dmesg tells",
                "killed",
                evidence=evidence or (run.last_text,),
                facts=facts,
            )
        if weak:
            return None
        for code, cause_id, words in (
            (-11, "segfault", "a process of the engine ended by SIGSEGV (segmentation fault)"),
            (-7, "bus-error", "a process of the engine ended by SIGBUS: a mapped file is truncated, its storage"
             " failed, or /dev/shm is full"),
            (-6, "unknown", "a process of the engine ended by SIGABRT (std::terminate or an assertion in C++)"),
        ):  # fmt: skip
            if code in codes or 128 - code in codes:
                return self._answer(
                    "crashed", words, cause_id, evidence=evidence or (run.last_text,), facts=facts
                )
        return None

    def _findings(self) -> list[tuple[int, int, Finding, Failure | None, tuple[str, ...]]]:
        """Every candidate as (priority, order, finding, failure, evidence): 0 a cause, 1 an unknown exception,
        2 a symptom of something elsewhere, 3 a handled exception."""
        run = self._run
        found: list[tuple[int, int, Finding, Failure | None, tuple[str, ...]]] = []
        definite = bool(run.deaths) or run.ended_code is not None
        for failure in run.failures:
            raised = failure.raised
            if raised is None:
                continue
            if failure.header.startswith("\0"):
                _order, finding, evidence = run.hints[failure.header[1:]]
                found.append((0, failure.order, finding, failure, (evidence,)))
                continue
            handled = failure.fatal is False
            if handled or (failure.fatal is None and failure.ready_before and not definite):
                continue
            named = self._name(failure)
            if named is None:
                continue
            priority = 2 if (named.id in CAUSES and CAUSES[named.id].secondary) else 0
            if named.id in ("unknown", "assertion"):
                priority = 1
            if failure.fatal is None and failure.ready_before:
                priority += 2
            found.append((priority, failure.order, named, failure, _evidence(failure)))
        for key, (order, finding, text) in run.hints.items():
            if key in ("numa", "native", "xid", "nccl-timeout") and not any(
                item[0] < 2 and key == "numa" for item in found
            ):
                weight = 0
                if finding.id == "cuda-fault" or key in ("native", "nccl-timeout"):
                    weight = 2 if any(item[0] == 0 for item in found) else 0
                found.append((weight, order, finding, None, (text,)))
        if not any(item[0] < 2 for item in found):
            for death in run.deaths:
                if death.kind == "detokenizer":
                    found.append(
                        (
                            2,
                            death.order,
                            Finding("detokenizer-died", "the detokenizer process ended"),
                            None,
                            (death.text,),
                        )
                    )
        return found

    def _name(self, failure: Failure) -> Finding | None:
        run = self._run
        place = Place(
            frames=failure.frame_text,
            phase=failure.phase,
            drafting=failure.second_load,
            ready=failure.ready_before,
            speculative=bool(run.args.get("speculative_draft_model_path"))
            or str(run.args.get("speculative_algorithm") or "None") not in ("None", "NGRAM"),
            draft_path=str(run.args["speculative_draft_model_path"])
            if run.args.get("speculative_draft_model_path")
            else None,
            rank=failure.rank,
            percent=failure.percent,
            header=failure.header,
        )
        last = failure.chain[-1]
        if last.type == "FatalPythonError":
            return self._fatal_finding(last.message, failure)
        if last.type == "usage":
            return classify(f"{last.message}", place) or Finding(
                "flag", f"SGLang refused the command line: {last.message[:300]}"
            )
        if last.type in (
            "KeyboardInterrupt",
            "SystemExit",
            "CancelledError",
            "asyncio.exceptions.CancelledError",
        ):
            return None
        if _DIED.search(last.text) or last.message.startswith("Initialization failed. Please see"):
            return None
        best: Finding | None = None
        for raised in reversed(failure.chain):
            finding = classify(raised.text, place)
            if finding is not None and not CAUSES[finding.id].secondary:
                best = finding
                break
            best = best or finding
        if best is not None and best.id in ("nccl-system", "nccl-cuda", "nccl-internal", "nccl-usage"):
            best = self._from_nccl_warnings(best, place)
        if best is None and failure.header.startswith("Initialization failed. warmup"):
            best = Finding(
                "warmup-failed", f"the server's own warm-up failed: {last.text.splitlines()[0][:300]}"
            )
        if best is None:
            first = last.text.splitlines()[0][:300]
            rank = "" if failure.rank is None else f" in rank TP{failure.rank}"
            when = {"starting": "init"}.get(failure.phase, failure.phase)
            if last.type.endswith("AssertionError"):
                return Finding("assertion", f"assertion failed{rank} during {when}: {first}")
            return Finding("unknown", f"{first}{rank} during {when}")
        return best

    def _from_nccl_warnings(self, finding: Finding, place: Place) -> Finding:
        for warning in self._run.warnings:
            inner = classify(warning.partition("WARN")[2].strip() or warning, place)
            if inner is not None and inner.id not in ("rank-lost", "nccl-internal"):
                return Finding(
                    inner.id, f"{finding.text}; NCCL's own warning before it: {inner.text}", inner.facts
                )
        return finding

    def _fatal_finding(self, what: str, failure: Failure) -> Finding:
        top = failure.frames[-1] if failure.frames else None
        at = "" if top is None else f" in {top[1]} ({top[0].rpartition('/')[2]})"
        loading = re.search(r"weight|load|safetensors", failure.frame_text) is not None
        if what.startswith("Bus error"):
            if loading:
                failure.phase = "loading"
            return Finding(
                "bus-error",
                f"SIGBUS{at} while reading mapped weights: a file is truncated, its storage failed under the mapping,"
                " or /dev/shm is full",
            )
        if what.startswith("Segmentation"):
            return Finding("segfault", f"SIGSEGV{at}: a native library crashed")
        if what.startswith("Aborted"):
            for raised in self._run.failures:
                if raised is not failure and raised.raised is not None and raised.fatal:
                    return Finding("rank-lost", f"aborted{at} after another error")
            return Finding("unknown", f"aborted{at} (SIGABRT)")
        return Finding("unknown", f"fatal interpreter error{at}: {what[:200]}")

    def _answer(
        self,
        verdict: str,
        cause: str,
        cause_id: str | None,
        *,
        evidence: tuple[str, ...] = (),
        remedy: str | None = None,
        facts: dict[str, Any] | None = None,
        remarks: list[str] | None = None,
        phase: str | None = None,
        exit_code: ExitCode | None = None,
    ) -> Explanation:
        run = self._run
        known = CAUSES.get(cause_id or "")
        if phase is None:
            phase = "exited" if verdict == "crashed" else run.phase
        all_facts = self._facts(phase)
        if verdict == "hung" and self._dead():
            phase = "exited"
        all_facts.update(facts or {})
        code = exit_code or (known.exit_code if known is not None else ExitCode.OK)
        return Explanation(
            verdict=verdict,
            phase=phase,
            cause=cause,
            cause_id=cause_id,
            remedy=remedy or (known.remedy if known is not None else None),
            evidence=tuple(_clean(line) for line in evidence if line)
            or ((_clean(run.last_text),) if run.last_text else ()),
            progress=None if run.progress is None else run.progress.as_dict(),
            facts={key: value for key, value in all_facts.items() if value is not None},
            remarks=tuple([*(remarks or []), *run.remarks.values()]),
            exit_code=int(code) if verdict in ("crashed", "hung") else 0,
        )

    def _facts(self, phase: str) -> dict[str, Any]:
        run = self._run
        facts: dict[str, Any] = {k: v for k, v in run.facts.items() if k not in ("target_loaded",)}
        facts["tp_ranks"] = run.args.get("tp_size") or (len(run.ranks) or None)
        for name in (
            "port",
            "host",
            "watchdog_timeout",
            "served_model_name",
            "model_path",
            "speculative_algorithm",
        ):
            if isinstance(run.args.get(name), (int, float)) or run.args.get(name) not in (None, "None"):
                facts.setdefault(name, run.args.get(name))
        if run.load_seconds:
            facts["load_seconds"] = _seconds(run.load_seconds.get(0, max(run.load_seconds.values())))
        if run.capture_seconds:
            facts["capture_seconds"] = _seconds(max(run.capture_seconds.values()))
        facts["phase"] = _CASE_PHASES[self._last_phase() if phase == "exited" and not run.finished else phase]
        if run.progress is not None:
            facts["percent"] = run.progress.percent
            facts["done"], facts["total"] = run.progress.done, run.progress.total
            if run.progress.remaining_seconds is not None:
                facts["eta_s"] = run.progress.remaining_seconds
        if self._attempts > 1:
            facts["attempts"] = self._attempts
            facts["previous_attempt"] = self._previous
        if run.http_errors:
            facts["http_5xx"] = run.http_errors
        return facts


def _evidence(failure: Failure) -> tuple[str, ...]:
    raised = failure.raised
    lines = []
    if failure.header and not failure.header.startswith("\0"):
        tag = "" if failure.rank is None else f"[TP{failure.rank}] "
        lines.append(f"{tag}{failure.header}")
    if failure.frames:
        file, function = failure.frames[-1]
        lines.append(f'File "{file}", in {function}')
    if raised is not None:
        lines.extend(without_advice(raised.text).splitlines()[:3])
    return tuple(line[:RING_CHARACTERS] for line in lines)


def _clean(line: str) -> str:
    return _NOT_PERSONAL.sub("[secret]", line)


def _seconds(value: float) -> float:
    return round(value, 1) if value >= 10 else round(value, 2)


def _value(text: str) -> Fact:
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
