"""A report's content: the decision's own words, what is refused, nothing from outside, everything escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy_kit.cli.report import app
from deploy_kit.decision.from_receipts import choose_profile
from deploy_kit.decision.traffic import parse_traffic
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Host, Receipt, new_receipt, write_receipt
from deploy_kit.report import build, markdown, page

pytest.importorskip("jinja2", reason="the HTML page needs Jinja2, which the engine's image may not have")

EVIL = "<script>alert(1)</script><img src=http://evil.example/x>\"'&|`*[a](b)"


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
