"""A report's content: the decision's own words, what is refused, nothing from outside, everything escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy_kit.campaign.model import CampaignState
from deploy_kit.cli.report import app
from deploy_kit.decision.from_receipts import choose_profile
from deploy_kit.decision.traffic import parse_traffic
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Host, Receipt, new_receipt, write_receipt
from deploy_kit.report import build, markdown, page

pytest.importorskip("jinja2", reason="the HTML page needs Jinja2, which the engine's image may not have")

EVIL = "<script>alert(1)</script><img src=http://evil.example/x>\"'&|`*[a](b)"
# Receipts and a campaign's state made up for reports: numbers of no machine.
MakeBench = Callable[..., Receipt]


def _bench(
    profile: str,
    speeds: dict[int, list[float]] | None = None,
    *,
    accept_length: float | None = None,
    cycle_seconds: float | None = None,
    draft_seconds: float | None = 0.004,
    verify_seconds: float | None = 0.011,
    host: str = "made-up-box",
    model: str = "kimi-k2.5",
    rehearsal: bool = False,
    stand_in: str | None = None,
    versions: dict[str, str] | None = None,
    levers: tuple[str, ...] = (),
    arguments: tuple[str, ...] = ("bench", "http://127.0.0.1:30000", "--profile", "it's"),
    facts: dict[str, Any] | None = None,
) -> Receipt:
    speculates = profile != "baseline"
    cells = [
        {
            "load": "closed",
            "concurrency": concurrency,
            "context_band": "0-2k",
            "round": number,
            "requests": 8,
            "errors": 0,
            "retries": 0,
            "interval_seconds": 10.0,
            "output_tokens": int(speed * 10),
            "tokens_per_second": speed,
            "stream_tokens_per_second": speed / concurrency,
            "cycle_seconds": cycle_seconds,
            "engine": {
                "accept_length": accept_length,
                "verify_seconds": verify_seconds if speculates else None,
                "draft_seconds": draft_seconds if speculates else None,
            },
        }
        for concurrency, rounds in (speeds or {1: [82.0, 82.5]}).items()
        for number, speed in enumerate(rounds)
    ]
    return new_receipt(
        kind="bench",
        host=Host(name=host, facts=facts or {"gpus": 8}),
        rehearsal=rehearsal,
        plan_id=f"plan-{profile}",
        versions=versions or {"stack": "current", "sglang": "0.5.23"},
        subject={
            "profile": profile,
            "levers": list(levers),
            "model": model,
            "interface": "openai",
            "workload": {
                "name": "prose-and-code",
                "sha256": "a" * 64,
                "output_tokens": 256,
                "temperature": 0.0,
                "ignore_eos": True,
                "seed": 1,
            },
            "arguments": list(arguments),
            "stand_in": stand_in,
        },
        samples=[],
        summary={"cells": cells},
        created_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    )


@pytest.fixture
def make_bench() -> MakeBench:
    """Return a function that makes a bench receipt."""
    return _bench


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """Return a folder of receipts in which EAGLE-3 pays at one stream and not at 32."""
    folder = tmp_path / "receipts"
    for receipt in (
        _bench("baseline", {1: [82.0, 82.4, 81.8], 32: [900.0, 905.0, 910.0]}),
        _bench(
            "eagle3",
            {1: [133.0, 132.0, 134.0], 32: [700.0, 690.0, 710.0]},
            accept_length=2.0,
            cycle_seconds=0.015,
        ),
        _bench("ngram", {1: [82.5, 81.9, 82.1]}, accept_length=1.6, cycle_seconds=0.0195, draft_seconds=None),
    ):
        write_receipt(folder, receipt)
    return folder


def _result(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "levers": [name], "outcome": "done", **more}


def _effect(ratio: float, low: float, high: float) -> dict[str, Any]:
    return {
        "metric": "tokens_per_second",
        "concurrency": None,
        "ratio": ratio,
        "interval": (low, high),
        "pairs": 3,
        "pair_ratios": [ratio] * 3,
        "base_mean": 60.0,
        "lever_mean": 60.0 * ratio,
    }


def _cell(step: str, side: str, levers: list[str], cycle: float, verify: float) -> dict[str, Any]:
    return {
        "key": f"{step}/{side}/0",
        "step": step,
        "side": side,
        "repeat": 0,
        "plan_id": f"plan-{side}-{step}",
        "levers": levers,
        "outcome": "measured",
        "ended_at": "2026-01-02T03:04:05Z",
        "measures": [
            {
                "concurrency": 1,
                "tokens_per_second": 2.0 / cycle,
                "cycle_seconds": cycle,
                "verify_seconds": verify,
                "draft_seconds": 0.004,
                "accept_length": 2.0,
            }
        ],
    }


def campaign_content() -> dict[str, Any]:
    """Return a campaign's state in which one lever helps, one does nothing, one hurts, one crashes, one is
    refused by its probe and one is not accepted."""
    names = ["pcie-ipc", "numa-binding", "expert-parallel", "nccl-tree", "sm120-fusion", "verify-graph"]
    return {
        "campaign": {
            "name": "fast-verify",
            "description": "made up",
            "question": "Which levers make a verify shorter?",
            "base": {"profile": "eagle3", "host": "made-up-box"},
            "lever": [{"name": name} for name in names],
        },
        "campaign_id": "abc123",
        "rehearsal": False,
        "host": "made-up-box",
        "model": "kimi-k2.5",
        "stack": "current",
        "base_plan_id": "plan-base",
        "versions": {"stack": "current", "sglang": "0.5.23"},
        "runner": "serve",
        "created_at": "2026-01-02T03:00:00Z",
        "updated_at": "2026-01-02T05:00:00Z",
        "finished": True,
        "cells": [
            _cell("pcie-ipc", "base", [], 0.030, 0.025),
            _cell("pcie-ipc", "lever", ["pcie-ipc"], 0.020, 0.015),
        ],
        "levers": [
            _result("pcie-ipc", verdict="helps", effects=[_effect(1.31, 1.25, 1.37)], claimed="15 ms"),
            _result(
                "numa-binding",
                verdict="no measurable effect",
                effects=[_effect(1.004, 0.99, 1.018)],
                reason="less",
            ),
            _result("expert-parallel", verdict="hurts", effects=[_effect(0.8, 0.7, 0.9)]),
            _result(
                "nccl-tree",
                outcome="failed",
                cause="hangs at graph capture",
                remedy="do not set NCCL_ALGO alone",
            ),
            _result("sm120-fusion", outcome="refused-by-probe", cause="wrong values on rank 3"),
            _result(
                "verify-graph",
                verdict="not accepted",
                effects=[_effect(1.1, 1.05, 1.15)],
                reason="accept length fell",
            ),
        ],
        "winners": ["pcie-ipc"],
        "conclusion": "pcie-ipc helps.",
    }


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    """Return the folder of a made-up campaign's state."""
    folder = tmp_path / "state"
    folder.mkdir()
    content = campaign_content()
    CampaignState.model_validate_json(json.dumps(content))
    (folder / "campaign.json").write_text(json.dumps(content))
    return folder


class Parsed(HTMLParser):
    """What matters of a page: its tags, attributes and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "line", "rect", "circle", "polygon", "path", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_says_what_decide_says(story: Path) -> None:
    traffic = parse_traffic("1:70,32:30")
    decision = choose_profile([story], traffic=traffic)
    content = build([story], traffic=traffic)
    parsed = Parsed(page(content))
    assert decision.choice.label in content.answer
    for text in (decision.sum_line, *decision.would_change, *decision.missing):
        assert text in parsed.text
        assert text.split(":")[0].replace("|", "") in markdown(content).replace("\\", "")
    assert content.facts["decision"]["choice"]["profile"] == decision.profile
    assert "break-even 15.0 ms x 82.1 tok/s = 1.23" in parsed.text
    for title in ("Decision, and its sum", "What was tried", "Verify anatomy", "Break-even", "The host"):
        assert title in parsed.text
    assert "deploy-kit bench http://127.0.0.1:30000 --profile 'it'\"'\"'s'" in parsed.text
    assert "0.5.23" in parsed.text
    assert "plan-eagle3" in parsed.text


def test_every_picture_is_described_and_has_its_numbers_beside_it(story: Path, campaign_file: Path) -> None:
    parsed = Parsed(page(build([story], campaign=campaign_file)))
    charts = [attributes for tag, attributes in parsed.tags if attributes.get("role") == "img"]
    figures = [tag for tag, _ in parsed.tags if tag == "figure"]
    assert len(charts) >= 8
    assert len(figures) >= 4
    identities = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    for chart in charts:
        assert all(name in identities for name in (chart["aria-labelledby"] or "").split())
    source = page(build([story], campaign=campaign_file))
    for figure in re.findall(r"<figure>.*?</figure>", source, re.DOTALL):
        assert "<table>" in figure


def test_the_page_needs_nothing_from_outside(story: Path, campaign_file: Path) -> None:
    text = page(build([story], campaign=campaign_file))
    parsed = Parsed(text)
    assert not {"script", "link", "img", "iframe", "object", "use"} & {tag for tag, _ in parsed.tags}
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert (value or "").startswith("#"), f"{tag} {name}={value}"
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert re.findall(r"url\(([^)]*)\)", style) == re.findall(r"url\((#[^)]*)\)", style)
    assert "default-src 'none'" in text
    assert not parsed.open


def test_a_campaign_shows_every_lever_and_how_it_ended(story: Path, campaign_file: Path) -> None:
    content = build([story], campaign=campaign_file)
    text = Parsed(page(content)).text
    assert "crashed or hung: hangs at graph capture" in text
    assert "do not set NCCL_ALGO alone" in text
    assert "refused by probe, never loaded: wrong values on rank 3" in text
    assert "no measurable effect" in text
    assert "+31.0 % (95 %: +25.0 to +37.0) helps" in text
    assert "accept length fell" in text
    assert "30.00 ms = 4.00 draft + 25.00 verify + 1.00 gaps and waits" in text  # before
    assert "20.00 ms = 4.00 draft + 15.00 verify + 1.00 gaps and waits" in text  # after
    assert content.facts["campaign"]["levers"]["nccl-tree"]["outcome"] == "failed"
    plain = markdown(content)
    for name in ("pcie-ipc", "numa-binding", "expert-parallel", "nccl-tree", "sm120-fusion"):
        assert name in plain


def test_a_campaign_alone_is_a_report_that_does_not_choose_a_profile(campaign_file: Path) -> None:
    content = build([], campaign=campaign_file)
    assert content.answer == "pcie-ipc helps."
    assert "needs bench receipts of the baseline" in content.because
    assert content.facts["decision"] is None
    Parsed(page(content))


def test_an_unfinished_campaign_says_so(campaign_file: Path) -> None:
    file = campaign_file / "campaign.json"
    state = json.loads(file.read_text())
    state |= {"finished": False, "conclusion": ""}
    state["levers"][1] = {"name": "numa-binding", "levers": ["numa-binding"], "outcome": "pending"}
    file.write_text(json.dumps(state))
    text = Parsed(page(build([], campaign=file))).text
    assert "Not finished: 5 of 6 levers are known" in text
    assert "not tried yet" in text


def test_a_rehearsal_is_shouted_first(make_bench: Callable[..., Receipt], tmp_path: Path) -> None:
    for profile in ("baseline", "eagle3"):
        write_receipt(tmp_path, make_bench(profile, rehearsal=True, stand_in="made-up-server"))
    content = build([tmp_path])
    text = page(content)
    assert text.index("REHEARSAL") < text.index("<h1>")
    assert "STAND-IN: made-up-server" in text
    assert markdown(content).splitlines()[2].startswith("> **REHEARSAL")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"host": "other-box"}, "host"),
        ({"rehearsal": True}, "rehearsal"),
        ({"model": "other"}, "model"),
        ({"versions": {"stack": "rollback", "sglang": "0.5.17"}}, "stack sglang"),
        ({"facts": {"gpus": 4}}, "host fact gpus"),
    ],
)
def test_what_does_not_compare_is_refused(
    make_bench: Callable[..., Receipt], tmp_path: Path, change: dict[str, object], key: str
) -> None:
    write_receipt(tmp_path, make_bench("baseline"))
    write_receipt(tmp_path, make_bench("eagle3", **change))
    with pytest.raises(DeployKitError, match="mix") as caught:
        build([tmp_path])
    assert caught.value.key == key
    assert caught.value.exit_code == ExitCode.INPUT


def test_a_probe_of_another_host_or_a_rehearsed_campaign_is_refused_too(
    story: Path, campaign_file: Path, make_bench: Callable[..., Receipt], tmp_path: Path
) -> None:
    file = campaign_file / "campaign.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps(state | {"rehearsal": True}))
    with pytest.raises(DeployKitError, match="rehearsals"):
        build([story], campaign=campaign_file)
    file.write_text(json.dumps(state | {"versions": {"sglang": "0.5.17"}}))
    with pytest.raises(DeployKitError, match="mix stacks"):
        build([story], campaign=campaign_file)
    write_receipt(story, _probe("other-box"))
    with pytest.raises(DeployKitError, match="hosts") as caught:
        build([story])
    assert "other-box (receipt" in (caught.value.found or "")
    assert build([story], host="made-up-box").facts["host"] == "made-up-box"


def test_probes_show_latencies_and_why_a_candidate_is_out(story: Path) -> None:
    write_receipt(story, _probe("made-up-box"))
    write_receipt(story, _probe("made-up-box", kind="fusion"))
    text = Parsed(page(build([story]))).text
    assert "▸ 21.0 (20.0 to 22.0)" in text
    assert "hang" in text
    assert "rank 5 waits in step replay" in text
    assert "rejected: wrong in graph" in text


def test_inputs_are_escaped_everywhere(make_bench: Callable[..., Receipt], tmp_path: Path) -> None:
    for profile, cycle in (("baseline", None), (EVIL, 0.02)):
        receipt = make_bench(
            profile,
            model=EVIL,
            host=EVIL,
            facts={EVIL: EVIL},
            versions={EVIL: EVIL},
            arguments=("bench", EVIL, "```", "\x1b[31m\x00"),
            stand_in=EVIL,
            accept_length=None if cycle is None else 2.0,
            cycle_seconds=cycle,
        )
        write_receipt(tmp_path, receipt)
    content = build([tmp_path])
    text = page(content)
    parsed = Parsed(text)
    assert not {"script", "img"} & {tag for tag, _ in parsed.tags}
    assert "\x1b" not in text
    assert "\x00" not in text
    plain = markdown(content)
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", plain, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in re.sub(r"\\[<>]", "", outside)
    for line in outside.splitlines():
        if line.startswith("|"):
            assert re.search(r"(?<!\\)`", line) is None


def test_bad_input_is_refused_and_nothing_is_written(story: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    runner = CliRunner()
    (story / "bench-bad.json").write_text("{")
    done = runner.invoke(app, [str(story), "-o", str(out)])
    assert isinstance(done.exception, DeployKitError)
    assert not out.exists()
    for arguments in (["-o", str(out)], [str(story)], [str(tmp_path / "none"), "-o", str(out)]):
        done = runner.invoke(app, arguments)
        assert isinstance(done.exception, DeployKitError), arguments
    (tmp_path / "empty").mkdir()
    with pytest.raises(DeployKitError, match="nothing to report"):
        build([tmp_path / "empty"])


def test_the_command_writes_both_files_and_tells_their_names(story: Path, tmp_path: Path) -> None:
    html, plain = tmp_path / "r.html", tmp_path / "r.md"
    done = CliRunner().invoke(app, [str(story), "-o", str(html), "--markdown", str(plain), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["files"] == [str(html), str(plain)]
    assert answer["decision"]["choice"]["profile"] == "eagle3" or answer["answer"]
    assert html.read_text().startswith("<!doctype html>")
    assert plain.read_text().startswith("# Does speculation pay?")
    done = CliRunner().invoke(app, [str(story), "-o", str(tmp_path / "no" / "r.html")])
    assert isinstance(done.exception, DeployKitError)


def _probe(host: str, kind: str = "allreduce") -> Receipt:
    if kind == "fusion":
        summary: dict[str, object] = {
            "verdict": "fail",
            "candidates": {"flashinfer-auto": {"acceptance": "reject", "cause": "rejected: wrong in graph"}},
        }
    else:
        summary = {
            "verdict": "ok",
            "sizes": {
                "4": {"latency_us": {"LL": {"median": 21.0, "low": 20.0, "high": 22.0}}, "fastest": "LL"},
            },
            "candidates": {
                "LL": {"status": "ok"},
                "ring": {"status": "hang", "step": "replay", "cause": "rank 5 waits in step replay"},
            },
            "host_setting": {"candidate": "LL", "environment": {"NCCL_PROTO": "LL"}},
            "notes": ["made up"],
        }
    return new_receipt(
        kind=kind,
        host=Host(name=host),
        rehearsal=False,
        subject={"model": "kimi-k2.5"},
        samples=[],
        summary=summary,
    )
