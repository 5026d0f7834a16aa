"""The startup watcher: a state machine fed by log bytes, and by what is known of process and endpoints.

Death is decided by, in order: the process (it ended), the engine's own words for the end of one of its
processes (whole lines at their beginning, or a traceback with such a header), never by a word in a line.
Memory is constant: rings, counters and a bounded number of failures.
"""

from __future__ import annotations

from collections import deque

from deploy_kit.startup.blocks import BEGIN, BlockReader
from deploy_kit.startup.journal import MAX_RANKS, Journal
from deploy_kit.startup.last_words import TAIL_LINES, read_last_words
from deploy_kit.startup.line_table import read_line
from deploy_kit.startup.lines import Line, LineSplitter, parse_line
from deploy_kit.startup.lines_of_ends import read_died
from deploy_kit.startup.lines_of_native import in_fault
from deploy_kit.startup.lines_of_phases import read_arguments, read_progress
from deploy_kit.startup.progress import Progress, read_bar
from deploy_kit.startup.run import RING_CHARACTERS, Explanation
from deploy_kit.startup.verdict import Verdict

MAX_RINGS = 72
RING_LINES = 40


class StartupWatcher:
    """Feed it the log (`feed`), and what is known beside it (`note_*`); ask `explain` at any time.

    `margin` is what a paste has before each of its lines (`margin_of`)."""

    def __init__(self, *, margin: bytes = b"") -> None:
        self._margin = margin
        self._splitter = LineSplitter()
        self._blocks = BlockReader()
        self._journal = Journal()
        self._attempts = 1
        self._previous: str | None = None
        self._rings: dict[str, deque[str]] = {}
        # The last lines as they were read; None stands for a line of a block.
        self._tail: deque[Line | None] = deque(maxlen=TAIL_LINES)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        for raw in self._splitter.feed(chunk):
            self._take(raw)

    def close(self) -> None:
        """The log is over (of a living engine this is never said): take the last line even though it has no
        end, and what it tells without a traceback."""
        raw = self._splitter.take_rest()
        if raw:
            self._take(raw)
        if not self._verdict().dead():
            read_last_words(self._journal, list(self._tail))

    def note_exit(self, code: int, *, oom_killed: bool = False) -> None:
        """The engine's process ended: its exit code (negative: the signal), and whether the kernel killed one
        of its processes for memory. From now on nothing is alive, whatever the log says."""
        self._journal.run.ended_code = code
        self._journal.run.oom_killed = oom_killed

    def note_kernel_kill(self) -> None:
        """The kernel's counters say that a process of ours was killed for memory."""
        self._journal.run.oom_killed = True

    def note_ready(self) -> None:
        """A real completion came back."""
        self._journal.run.ready = True
        self._journal.run.serving = True

    def note_draining(self) -> None:
        """We were asked to stop and passed it on."""
        self._journal.run.draining = True

    def note_silence(self, seconds: float | None) -> None:
        """Nothing observable has advanced for this long (None: something has)."""
        self._journal.silent_seconds = seconds

    def unfinished_progress(self) -> None:
        """Look at a bar that has not been ended yet: bars end only when the next one begins."""
        raw = self._splitter.unfinished()
        if raw.endswith(b"]"):
            bar = read_bar(parse_line(raw).text)
            if bar is not None:
                read_progress(self._journal, bar[0], parse_line(raw))

    def _take(self, raw: bytes) -> None:
        journal = self._journal
        journal.order += 1
        journal.silent_seconds = None
        line = parse_line(raw.removeprefix(self._margin))
        self._keep(line)
        run = journal.run
        if line.stamp is not None:
            if run.last_stamp is None:
                # A traceback before the first time stamp (a log that was cut) is not younger than this.
                for failure in run.failures:
                    failure.stamp = failure.stamp or line.stamp
            run.last_stamp = line.stamp
            if line.rank is not None and len(run.ranks) < MAX_RANKS:
                run.ranks.add(line.rank)
        text = line.text
        if not text:
            self._blocks.feed(line)
            return
        self._tail.append(None)
        if text.startswith("server_args="):
            self._arguments(line)
            return
        if journal.fault is not None and in_fault(journal, line):
            return
        if not self._blocks.idle or BEGIN in text:
            if self._blocks.feed(line):
                self._block(line)
                return
        else:
            self._blocks.note_opener(line)
        self._tail[-1] = line
        read_line(journal, line)

    def _keep(self, line: Line) -> None:
        key = line.stream + (line.tag or "")
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= MAX_RINGS:
                key = ""
            ring = self._rings.setdefault(key, deque(maxlen=RING_LINES))
        ring.append(line.text[:RING_CHARACTERS])
        if line.text and not line.text.startswith("---"):
            self._journal.run.last_text = line.text[:RING_CHARACTERS]

    def _arguments(self, line: Line) -> None:
        run = self._journal.run
        # A second dump is another start's: whatever was raised before it ended the first.
        again = bool(run.args) and any(failure.raised for failure in run.failures)
        if (
            run.deaths
            or run.finished
            or run.ready
            or run.stage > (0, 0)
            or again
            or any(f.fatal for f in run.failures)
        ):
            answer = self.explain()
            self._previous = f"{answer.verdict}: {answer.cause}"[:300]
            self._attempts += 1
            self._journal.begin_again()
            self._blocks = BlockReader()
        # The first thing that an engine says of itself: a traceback before it was of something handled.
        self._journal.alive(line, strong=True)
        read_arguments(self._journal, line)

    def _block(self, line: Line) -> None:
        begun, completed = self._blocks.begun, self._blocks.completed
        if begun is not None:
            begun.stamp = begun.stamp or self._journal.run.last_stamp
            self._journal.add(begun, line)
        if completed is not None and completed.raised is not None:
            text = completed.raised.text
            if text.startswith("RuntimeError: "):
                read_died(self._journal, Line(text, completed.rank, stream=line.stream))

    def ring(self) -> dict[str, list[str]]:
        """Return the last lines of each rank (the key is its tag)."""
        return {key: list(lines) for key, lines in self._rings.items()}

    @property
    def phase(self) -> str:
        """The phase now; a crash found in the log is "exited"."""
        return "exited" if self._verdict().dead() else self._journal.run.phase

    @property
    def running_phase(self) -> str:
        """The phase that was reached, whether or not the engine has died in it."""
        return self._journal.run.phase

    @property
    def progress(self) -> Progress | None:
        """The newest reading of the bar of this phase."""
        return self._journal.run.progress

    @property
    def ready_line_seen(self) -> bool:
        """Whether the engine itself said that it is ready."""
        return self._journal.run.ready

    @property
    def unhealthy(self) -> bool:
        """Whether the engine's own last word about its health was bad."""
        return self._journal.run.unhealthy is not None

    def hung_after_seconds(self) -> float:
        """Return the seconds without a sign of life after which this phase counts as hung."""
        return self._verdict().hung_after_seconds()

    def explain(self) -> Explanation:
        """Return the verdict for what has been seen so far."""
        return self._verdict().explain()

    def _verdict(self) -> Verdict:
        return Verdict(
            self._journal.run,
            silent_seconds=self._journal.silent_seconds,
            attempts=self._attempts,
            previous=self._previous,
        )
