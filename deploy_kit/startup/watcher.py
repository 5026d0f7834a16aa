"""The startup watcher: a state machine fed by log bytes, and by what is known of process and endpoints.

Death is decided by, in order: the process (it ended), the engine's own words for the end of one of its
processes (whole lines at their beginning, or a traceback with such a header), never by a word in a line.
Memory is constant: rings, counters and a bounded number of failures.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

from deploy_kit.startup.blocks import BEGIN, BlockReader, Failure, Raised
from deploy_kit.startup.causes import Finding, Place, classify
from deploy_kit.startup.lines import Line, LineSplitter, parse_line, seconds_between
from deploy_kit.startup.progress import Progress, read_bar
from deploy_kit.startup.run import RING_CHARACTERS, Death, Explanation, Fact, Run
from deploy_kit.startup.status import PHASES
from deploy_kit.startup.verdict import Verdict

MAX_FAILURES = 24
MAX_RANKS = 72
RING_LINES = 40
_ORDER = {phase: index for index, phase in enumerate(PHASES)}

_ARGS = ("model_path", "served_model_name", "speculative_draft_model_path", "speculative_algorithm", "host",
         "port", "tp_size", "watchdog_timeout", "log_level", "quantization")  # fmt: skip
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
    r"(?:ERROR:\s+)?\[Errno \d+\] error while attempting to bind on address"
    r" \('(?P<host>[^']*)', (?P<port>\d+)"
)
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[\w:.]+)\): (?P<xid>\d+)(?:, (?P<rest>.*))?")
_KERNEL_KILL = re.compile(
    r"(?P<memcg>Memory cgroup )?[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
)
_SHUTDOWN = ("Shutting down", "Waiting for application shutdown", "Finished server process")
_SILENCE = re.compile(r"--- seconds since last write: (?P<seconds>\d+)")
_NUMA = re.compile(
    r"setting membind: |set_mempolicy: |mbind: |numactl: |libnuma: |<[\d,-]+> is invalid|.*numactl: not found"
    r"|setting cpu affinity: |sched_setaffinity: |.*numactl could not apply"
)
_LAUNCHER = re.compile(
    r"\S*python[\d.]*: (?:No module named|can't open file|Error while finding)"
    r"|(?:\S*/)?(?:ba|da)?sh: .*not found"
)
_ACCEPT = re.compile(r"accept len: ([\d.]+)")
_HTTP = re.compile(r'INFO:\s+\S+ - "(?P<method>\w+) (?P<path>\S+) HTTP/[\d.]+" (?P<status>\d{3})')
_GRAPH = re.compile(r"Capture (?P<name>[\w -]*?) ?(?:CUDA|cuda|CPU) graph begin")
_FATAL_PYTHON = re.compile(r"Fatal Python error: (?P<what>.+)")
_FAULT_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')
_ODD = re.compile(
    r"Xid|[Kk]illed process|exited with code|: error: |atchdog timeout|attempting to bind|oom-kill"
    r"|No module named|not found|Autotuning process|flashinfer\.jit: "
    r"|what\(\):|scheduler died during|batch_size\(\)="
)


class StartupWatcher:
    """Feed it the log (`feed`), and what is known beside it (`note_*`); ask `explain` at any time."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._blocks = BlockReader()
        self._run = Run()
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
            self._run = run = Run()
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
        elif rest.startswith(_SHUTDOWN) and (self._run.ready or self._run.draining):
            # Uvicorn shuts down the same way after a failed bind: only a server that was up was asked to.
            self._run.draining = True
            self._run.finished = self._run.finished or rest.startswith("Finished")

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

    def _prefill(self, _line: Line) -> None:
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

    def _death(self, kind: str, line: Line, **more: Any) -> Death:
        death = Death(kind, line.text[:RING_CHARACTERS], self._order, **more)
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
        if not _NUMA.match(line.text):
            return
        if "not found" in line.text:
            finding = Finding(
                "numa-refused", "numactl is not installed in this image, and the ranks start by it"
            )
        else:
            finding = Finding(
                "numa-refused",
                f"numactl was refused ({line.text[:120]}): --membind / set_mempolicy is blocked by the"
                " container's seccomp profile (EPERM or EINVAL), or the node is outside its cpuset",
            )
        self._hint("numa", finding, line.text)

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
        if "Autotuning process" in head or "flashinfer.jit: " in head:
            run.compiling = not run.ready and "process ends" not in head
            return
        if _NUMA.match(head):
            self._numa(line)
            return
        launcher = _LAUNCHER.match(head)
        if launcher is not None and not run.args and not run.stages:
            self._failure_of_line(
                line,
                "launcher",
                head[:300],
                Finding("library-mismatch", f"the engine's program is not in this image: {head[:200]}"),
            )
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
                self._run.watchdog = self._run.watchdog or Death("nccl-watchdog", text[:400], self._order)
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
        return "exited" if self._verdict().dead() else self._run.phase

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

    def hung_after_seconds(self) -> float:
        """Return the seconds without a sign of life after which this phase counts as hung."""
        return self._verdict().hung_after_seconds()

    def explain(self) -> Explanation:
        """Return the verdict for what has been seen so far."""
        return self._verdict().explain()

    def _verdict(self) -> Verdict:
        return Verdict(
            self._run,
            silent_seconds=self._silent_seconds,
            attempts=self._attempts,
            previous=self._previous,
        )


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
