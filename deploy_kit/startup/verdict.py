"""From what was seen of a start to the answer: verdict, cause, evidence, remedy, facts. Changes nothing."""

from __future__ import annotations

import re
from typing import Any

from deploy_kit.exit_codes import ExitCode
from deploy_kit.startup.blocks import Failure
from deploy_kit.startup.causes import CAUSES
from deploy_kit.startup.findings import find_causes
from deploy_kit.startup.run import Death, Explanation, Run
from deploy_kit.startup.status import PHASES

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
_NOT_PERSONAL = re.compile(
    # A count such as "#token: 11179" in a decode line is no secret.
    r"(?i)bearer \S+|(?:api[_-]key|token(?!\s*:\s*\d+(?:,|\s|$))|password)['\"]?\s*[=:]\s*"
    r"['\"]?[^'\",\s)]{4,}|hf_[A-Za-z0-9]{8,}"
)


_SIGNALS = (
    (-11, "segfault", "a process of the engine ended by SIGSEGV (segmentation fault)"),
    (
        -7,
        "bus-error",
        "a process of the engine ended by SIGBUS: a mapped file is truncated, or storage or /dev/shm failed",
    ),
    (-6, "unknown", "a process of the engine ended by SIGABRT (std::terminate or an assertion in C++)"),
)


class Verdict:
    """Judges one start (`run`). `silent_seconds`: how long nothing observable has advanced, None when it has;
    `attempts` and `previous`: how many starts the log holds, and what became of the last one."""

    def __init__(
        self, run: Run, *, silent_seconds: float | None = None, attempts: int = 1, previous: str | None = None
    ) -> None:
        self._run = run
        self._silent_seconds = silent_seconds
        self._attempts = attempts
        self._previous = previous

    def dead(self) -> bool:
        """Return whether the engine has ended, by the process or by its own words."""
        run = self._run
        if run.ended_code is not None:
            return True
        if run.draining and not run.deaths:
            return False
        if run.deaths or run.watchdog is not None:
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
        ended = run.ended_code is not None or run.finished
        if ended and (run.draining or (run.finished and not self.dead())) and not self._died_while_draining():
            return self._stopped()
        if self.dead() and not (run.ended_code == 0 and run.draining):
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
                f"log_level={run.args['log_level']}: phase lines will not appear;"
                " rely on HTTP health and the process"
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
                f"serving, but the drafter is useless: accept length {run.facts.get('accept_len')} (no"
                " draft token is accepted)",
                "drafter-useless",
                remedy="deploy-kit drafter check FOLDER (a drafter without lm_head or for another target"
                " looks like this); until then serve the baseline",
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
        if "cut" in run.remarks:
            text = "decode lines: the engine serves (the log's beginning, with the ready line, is missing)"
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
        elif run.compiling:
            text = "the compilation of kernels does not advance"
        else:
            text = {
                "starting": "the start does not advance",
                "loading": "no shard has been loaded since",
                "allocating": "memory pools are not ready",
                "capturing": "graph capture does not advance: a collective in it, or a compilation, hangs",
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
        found = find_causes(run)
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
        if watchdog is not None and (
            best is None or best[0] >= 2 or best[1] > watchdog.order or best[2].id == "nccl-timeout"
        ):
            return self._watchdog_answer(watchdog, facts)
        codes = {d.exit_code for d in exit_codes} | {run.ended_code}
        if best is None or best[0] >= 2:
            killed = self._killed_answer(codes, facts, best is not None and best[0] < 3)
            if killed is not None:
                return killed
        if best is None:
            evidence = [d.text for d in run.deaths[:2]] + [run.last_text]
            text = "the engine ended without saying why"
            if any(failure.fatal and failure.raised is None for failure in run.failures):
                text = "a process of the engine hit an exception; its text is not in this log (yet)"
            elif run.deaths and run.deaths[0].kind == "sigquit":
                text = "a child process failed, and its own traceback is not in this log"
            elif facts.get("exit_code") is not None:
                ended = f"rank {facts['rank']}'s process" if facts.get("rank") is not None else "the engine"
                text = (
                    f"{ended} ended with exit code {facts['exit_code']} in phase {self._last_phase()},"
                    " without a traceback"
                )
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

    def _watchdog_answer(self, watchdog: Death, facts: dict[str, Any]) -> Explanation:
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
                f"a process of the engine was killed with SIGKILL in phase {self._last_phase()}: mostly the"
                " kernel's OOM killer (host memory or the container's limit); dmesg tells",
                "killed",
                evidence=evidence or (run.last_text,),
                facts=facts,
            )
        if weak:
            return None
        for code, cause_id, words in _SIGNALS:
            if code in codes or 128 - code in codes:
                return self._answer(
                    "crashed", words, cause_id, evidence=evidence or (run.last_text,), facts=facts
                )
        return None

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
        if verdict == "hung" and self.dead():
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
            remarks=(*(remarks or []), *run.remarks.values()),
            exit_code=int(code) if verdict in ("crashed", "hung") else 0,
        )

    def _facts(self, phase: str) -> dict[str, Any]:
        run = self._run
        facts: dict[str, Any] = {k: v for k, v in run.facts.items() if k != "target_loaded"}
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


def _clean(line: str) -> str:
    return _NOT_PERSONAL.sub("[secret]", line)


def _seconds(value: float) -> float:
    return round(value, 1) if value >= 10 else round(value, 2)
