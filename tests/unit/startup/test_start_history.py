"""How long earlier starts took: kept, bounded, read past damage, and used for what is alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.errors import DeployKitError
from deploy_kit.startup.display import View, elapsed_text, render
from deploy_kit.startup.history import FILE_NAME, KEPT_STARTS, Start, add_start, expect, read_starts


def start(ready: float, *, plan: str = "p1", profile: str = "eagle3", host: str = "box") -> Start:
    return Start(1.0, plan, profile, "kimi", host, ready, {"loading": ready / 2})


def test_the_median_of_the_newest_starts_of_the_same_plan(tmp_path: Path) -> None:
    for seconds in (4000.0, 100.0, 110.0, 120.0, 130.0, 900.0):
        add_start(tmp_path, start(seconds))
    add_start(tmp_path, start(5.0, host="other"))
    found = expect(read_starts(tmp_path), plan_id="p1", profile="eagle3", model="kimi", host="box")
    assert found is not None
    assert (found.ready_seconds, found.starts, found.of) == (120.0, 5, "this plan")
    assert found.phase_seconds == {"loading": 60.0}
    assert found.text == "about 120 s expected (5 earlier starts of this plan)"


def test_what_is_alike_serves_when_the_plan_is_new() -> None:
    starts = (start(50.0, plan="a"), start(70.0, plan="b", profile="baseline"))
    profile = expect(starts, plan_id="new", profile="eagle3", model="kimi", host="box")
    assert profile is not None
    assert (profile.ready_seconds, profile.of) == (50.0, "this profile")
    model = expect(starts, plan_id="new", profile="ngram", model="kimi", host="box")
    assert model is not None
    assert (model.ready_seconds, model.of) == (60.0, "this model")
    assert expect(starts, plan_id="a", profile="eagle3", model="kimi", host="elsewhere") is None
    assert expect((), plan_id="a", profile="eagle3", model="kimi", host="box") is None


def test_the_history_is_bounded_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text('{"half": \n[1]\nnull\n{"schema_version": 2}\n' + '{"at_seconds": 1}\n' * 500)
    for number in range(KEPT_STARTS + 3):
        if number % 50 == 0:
            with path.open("a") as damaged:
                damaged.write('{"plan_id": 3')
        add_start(tmp_path, start(10.0 + number))
    kept = read_starts(tmp_path)
    assert len(kept) == KEPT_STARTS
    assert kept[-1].ready_seconds == 10.0 + KEPT_STARTS + 2
    assert len(path.read_text().splitlines()) == KEPT_STARTS


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_bytes(data)
        read_starts(Path(folder))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployKitError, match="starts"):
        add_start(tmp_path / "file" / "under", start(1.0))


def test_the_display_shows_elapsed_and_expected() -> None:
    from rich.console import Console

    view = View(
        phase="loading",
        elapsed_seconds=310.0,
        text="loading weights: 12 of 64 shards",
        progress_ratio=12 / 64,
        progress_text="12/64, 400 s left",
        phase_seconds={"starting": 10.0, "loading": 300.0},
        expected_seconds=1180.0,
        expected_phase_seconds={"loading": 1000.0},
        expected_from="about 1180 s expected (3 earlier starts of this plan)",
        stalled_checks=("log: nothing new for 200 s",),
    )
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(render(view))
    text = console.export_text()
    for words in (
        "loading 300 of ~1000 s",
        "starting 10 s",
        "12/64",
        "310 s since the start",
        "870 s left",
        "nothing new",
    ):
        assert words in text
    assert elapsed_text(20.0, 10.0, None).endswith("10 s over it")
    assert elapsed_text(20.0, None, None) == "20 s since the start"
    # Of a start that is over nothing is left.
    assert elapsed_text(17.0, 24.0, None, over=True) == "it took 17 s; about 24 s expected"
