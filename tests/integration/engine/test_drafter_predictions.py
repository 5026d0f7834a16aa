"""What `deploy-kit drafter check` and `remap` say, held against the real SGLang.

Every kind of misfit is made from one good drafter by one change (drafter_variants.py). Loading is tried in
one process with SGLang's own loader; what shows only in a forward takes a server of its own. The default
run serves two; the rest is marked slow.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mla_drafter_on_cpu
import numpy as np
import pytest
from deploy_kit_rehearsal.expect import Speech, expected_tokens, load_speech
from drafter_variants import (
    Change,
    borrowing,
    both,
    eagle1,
    keys,
    layers,
    mla_twin,
    narrow_fc,
    other_width,
    raw,
    read,
    reads_hidden_states,
    renamed,
    replaced,
    speculators,
    with_map,
    without,
    without_key,
    write,
)
from engine_server import ENGINE_ENVIRONMENT, serving
from test_serving import eagle3

from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Report
from deploy_kit.drafter.local import describe_folder
from deploy_kit.drafter.remap import plan_remap, vocabulary_of, write_remap

pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
VERSION = "0.5.23"
GOOD_ACCEPT_LENGTH = 4.0
# An answer's last verify is cut, so what accepts nothing reaches a little more than 1.
NOTHING_ACCEPTED = pytest.approx(1.0, abs=0.05)

# Change, predicted kind (None: ok), and what SGLang's error must hold (None: it loads).
CHANGES: dict[str, tuple[Change, str | None, str | None]] = {
    "good": (keys(), None, None),
    "newer-names": (renamed("midlayer.", "layers.0."), None, None),
    "model-prefix": (renamed("midlayer.", "model.midlayer."), None, None),
    "no-draft-size": (without_key("draft_vocab_size"), WILL_NOT_LOAD, "no attribute 'draft_vocab_size'"),
    "head-rows": (keys(draft_vocab_size=160), WILL_NOT_LOAD, "org_vocab_size"),
    "hidden-null": (keys(target_hidden_size=None), WILL_NOT_LOAD, "unsupported operand"),
    "four-layers": (layers(1, 2, 3, 4), WILL_NOT_LOAD, "Attempted to load weight"),
    "narrow-fc": (narrow_fc, WILL_NOT_LOAD, "Attempted to load weight"),
    "no-model-type": (without_key("model_type"), WILL_NOT_LOAD, "Should have a `model_type` key"),
    "unknown-class": (keys(architectures=["Eagle3DraftModel"]), WILL_NOT_LOAD, "Cannot find model module"),
    "no-architecture": (without_key("architectures"), WILL_NOT_LOAD, "object is not subscriptable"),
    "speculators": (speculators, WILL_NOT_LOAD, "Should have a `model_type` key"),
    "eagle1-head": (eagle1, WILL_NOT_LOAD, "no attribute 'hot_token_id'"),
    "medusa": (
        both(without_key("architectures"), both(without_key("model_type"), keys(medusa_num_heads=4))),
        WILL_NOT_LOAD,
        "Should have a `model_type` key",
    ),
    "short-context": (
        keys(max_position_embeddings=1024),
        WILL_NOT_LOAD,
        "greater than the derived context_length",
    ),
    "no-query": (without("q_proj.weight"), WILL_NOT_ACCEPT, None),
    "no-head": (without("lm_head.weight"), WILL_NOT_ACCEPT, None),
    "no-map": (without("d2t"), WILL_NOT_ACCEPT, None),
    "tied": (both(keys(tie_word_embeddings=True), without("lm_head.weight")), WILL_NOT_ACCEPT, None),
}


@pytest.fixture(scope="module")
def target(models: Path) -> Path:
    return models / "target"


@pytest.fixture(scope="module")
def good(models: Path) -> Path:
    return models / "drafters" / "accept-4.00"


@pytest.fixture(scope="module")
def variants(good: Path, target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("variants")
    of_mla = {
        "mla-good": mla_twin,
        "mla-borrowed": both(mla_twin, borrowing),
        "mla-two-layers": both(mla_twin, keys(num_hidden_layers=2)),
        "mla-no-head": both(mla_twin, without("lm_head.weight")),
    }
    changes = {**{name: change for name, (change, _, _) in CHANGES.items()}, **of_mla}
    made = {name: write(folder / name, *change(*read(good))) for name, change in changes.items()}
    return {**made, "target": target}


@pytest.fixture(scope="module")
def loaded(target: Path, variants: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """What SGLang made of each variant."""
    command = [sys.executable, str(HERE / "load_drafters.py"), str(target), *map(str, variants.values())]
    done = subprocess.run(
        command,
        env={**os.environ, **ENGINE_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    results = {Path(result["drafter"]).name: result for result in map(json.loads, lines)}
    assert set(results) == set(variants), done.stderr[-4000:]
    return results


def checked(draft: Path, target: Path, algorithm: str = "EAGLE3", **flags: str) -> Report:
    given = {
        "context-length": "2048",
        "speculative-algorithm": algorithm,
        "speculative-draft-model-path": str(draft),
        **flags,
    }
    return check_drafter(describe_folder(draft, target, sglang_version=VERSION, flags=given))


def deciding(report: Report) -> set[str]:
    return {finding.id for finding in report.deciding}


def foretold(report: Report, error: str) -> bool:
    return any(error in finding.error or error in finding.cause for finding in report.deciding)


@pytest.mark.parametrize("name", CHANGES)
def test_loading_goes_as_predicted(
    name: str, target: Path, variants: dict[str, Path], loaded: dict[str, dict[str, Any]]
) -> None:
    _, kind, error = CHANGES[name]
    report = checked(variants[name], target)
    assert report.kind == kind, report.cause
    assert report.verdict == ("ok" if kind is None else "reject")
    if error is None:
        assert "error" not in loaded[name], loaded[name]
    else:
        assert error in loaded[name]["error"]
        assert foretold(report, error), report.deciding


def test_the_map_is_read_as_offsets(good: Path, loaded: dict[str, dict[str, Any]]) -> None:
    assert loaded["good"]["map"] == vocabulary_of(good)[0].tolist()
    assert loaded["no-map"]["map"] is None
    assert loaded["tied"]["tied"] is True


def test_the_target_itself_is_no_drafter(target: Path, loaded: dict[str, dict[str, Any]]) -> None:
    report = checked(target, target)
    assert (report.verdict, report.kind, deciding(report)) == ("reject", WILL_NOT_LOAD, {"target-as-drafter"})
    assert "no attribute 'hot_token_id'" in loaded["target"]["error"]


def test_mla_class(target: Path, variants: dict[str, Path], loaded: dict[str, dict[str, Any]]) -> None:
    for name in ("mla-good", "mla-borrowed"):
        assert loaded[name].get("class") == "Eagle3DeepseekV2ForCausalLM", loaded[name]
        assert loaded[name]["borrows_head"] is (name == "mla-borrowed")
        report = checked(variants[name], target)
        assert report.verdict == "ok", report.cause
    assert "only supports 1 layer" in loaded["mla-two-layers"]["error"]
    assert foretold(checked(variants["mla-two-layers"], target), "only supports 1 layer")
    # It loads, with a head of its own that nothing fills: the prediction is that it does not accept.
    assert loaded["mla-no-head"]["borrows_head"] is False
    assert "lm_head missing" in checked(variants["mla-no-head"], target).cause


def accept_length(target: Path, drafter: Path, folder: Path, *argv: str) -> float:
    """SGLang's own accept length of one answer, served with this drafter (of either class)."""
    folder.mkdir(exist_ok=True)
    mla = json.loads((drafter / "config.json").read_text())["architectures"] == [
        "Eagle3DeepseekV2ForCausalLM"
    ]
    environment = mla_drafter_on_cpu.environment(folder) if mla else {}
    with serving(target, folder, *(argv or eagle3(drafter)), **environment) as server:
        return float(server.generate("Ada builds", 120)["meta_info"]["spec_accept_length"])


@pytest.mark.slow
@pytest.mark.parametrize("style", ["llama", "mla"])
def test_remap_brings_acceptance_back(style: str, good: Path, target: Path, tmp_path: Path) -> None:
    """A later export wrote another vocabulary over the map: nothing is accepted until it is repaired."""
    change = keys() if style == "llama" else mla_twin
    order = vocabulary_of(good)[0]
    backwards = order[::-1]
    places = np.arange(backwards.size)
    overwritten = write(tmp_path / "overwritten", *both(change, with_map(backwards - places))(*read(good)))
    report = checked(overwritten, target)
    assert deciding(report) == {"d2t-order"}, report.cause
    assert accept_length(target, overwritten, tmp_path / "first") == NOTHING_ACCEPTED
    plan = plan_remap(overwritten, backwards, None, head_order=order)
    assert (plan.kept, plan.initialised, plan.dropped) == (order.size, 0, 0)
    remapped = tmp_path / "remapped"
    write_remap(plan, remapped, initial="mean")
    assert accept_length(target, remapped, tmp_path / "second") == pytest.approx(GOOD_ACCEPT_LENGTH, abs=0.1)


def d2t(what: str) -> Change:
    """d2t as people export it wrongly."""

    def change(config: Any, items: Any) -> Any:
        _, _, shape, data = next(item for item in items if item[0] == "d2t")
        offsets = np.frombuffer(data, dtype="<i8")
        if what == "zeros":
            return with_map(np.zeros(shape))(config, items)
        if what == "ids":
            return with_map(offsets + np.arange(offsets.size))(config, items)
        if what == "beyond":
            return with_map(offsets + config["vocab_size"])(config, items)
        if what == "f32":
            return replaced("d2t", "F32", offsets.astype("<f4"))(config, items)
        bits = as_bf16(offsets).view(np.uint32)
        return replaced("d2t", "BF16", (bits >> 16).astype("<u2"))(config, items)

    return change


AUX_OFF = keys(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 4], "use_aux_hidden_state": False})
# Change, accept length, the findings that decide.
SERVED: dict[str, tuple[Change, float, set[str]]] = {
    "good": (keys(), 4.0, set()),
    "full-vocabulary-borrowed": (borrowing, 4.0, set()),
    "hidden-states-only": (reads_hidden_states, 2.0, set()),
    "mla-good": (mla_twin, 4.0, set()),
    "mla-borrowed": (both(mla_twin, borrowing), 4.0, set()),
    "mla-hidden-states-only": (both(reads_hidden_states, mla_twin), 2.0, set()),
    "no-head": (without("lm_head.weight"), 1.0, {"lm-head"}),
    "no-map": (without("d2t"), 1.0, {"d2t-missing"}),
    "tied": (both(keys(tie_word_embeddings=True), without("lm_head.weight")), 1.0, {"tied-head"}),
    "zeros-in-map": (d2t("zeros"), 1.0, {"d2t-zeros"}),
    "aux-off": (both(reads_hidden_states, AUX_OFF), 1.0, {"aux-off"}),
    "mla-aux-off": (both(both(reads_hidden_states, AUX_OFF), mla_twin), 1.0, {"aux-off"}),
    "mla-no-head": (both(mla_twin, without("lm_head.weight")), 1.0, {"lm-head"}),
    "mla-no-map": (both(mla_twin, without("d2t")), 1.0, {"d2t-missing"}),
    "mla-zeros-in-map": (both(mla_twin, d2t("zeros")), 1.0, {"d2t-zeros"}),
    "mla-tied": (
        both(mla_twin, both(keys(tie_word_embeddings=True), without("lm_head.weight"))),
        1.0,
        {"tied-head"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_acceptance_is_as_predicted(name: str, good: Path, target: Path, tmp_path: Path) -> None:
    change, length, findings = SERVED[name]
    draft = write(tmp_path / "draft", *change(*read(good)))
    report = checked(draft, target)
    assert deciding(report) == findings, report.cause
    assert report.kind == (WILL_NOT_ACCEPT if findings else None)
    wanted = NOTHING_ACCEPTED if length == 1.0 else pytest.approx(length, abs=0.1)
    assert accept_length(target, draft, tmp_path / "server") == wanted


def as_bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rounded to the nearest BF16 number, ties to even, as float32."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


def answer_with_rounded_ids(good: Path, speech: Speech, last: int, count: int) -> tuple[list[int], float]:
    """The answer's tokens and accept length where ids are BF16: drafts, and the token that each verify starts
    from, are rounded; what the target then says is whole again."""
    whole_ids, _ = vocabulary_of(good)
    places = np.arange(whole_ids.size)
    drafted = as_bf16(as_bf16(whole_ids - places) + as_bf16(places)).astype(int).tolist()
    draft_for = dict(zip(whole_ids.tolist(), drafted, strict=True))
    said, verifies = [speech.successor(last)], 0
    while len(said) < count:
        token, fed = said[-1], [int(as_bf16(np.array([said[-1]]))[0])]
        for _ in range(3):
            token = draft_for[speech.successor(token)]
            fed.append(token)
        predicted = [speech.successor(token) for token in fed]
        agreeing = [draft == right for draft, right in zip(fed[1:], predicted, strict=False)]
        said += predicted[: (agreeing.index(False) if False in agreeing else len(agreeing)) + 1]
        verifies += 1
    return said[:count], count / verifies


@pytest.mark.slow
def test_a_map_of_rounded_numbers_spoils_the_answer_itself(good: Path, target: Path, tmp_path: Path) -> None:
    """Not only the drafts: the target's own last token stands in the same tensor."""
    draft = write(tmp_path / "draft", *d2t("bf16")(*read(good)))
    report = checked(draft, target)
    assert (report.kind, deciding(report)) == (WILL_NOT_ACCEPT, {"d2t-type"})
    assert "so is the answer itself" in report.cause
    speech = load_speech(target)
    tokens, length = answer_with_rounded_ids(good, speech, speech.circle[1], 120)
    with serving(target, tmp_path, *eagle3(draft)) as server:
        answer = server.generate("Ada builds", 120)
    assert answer["output_ids"] == tokens
    assert tokens != expected_tokens(speech, speech.circle[1], 120)
    assert answer["meta_info"]["spec_accept_length"] == pytest.approx(length)
    assert length < GOOD_ACCEPT_LENGTH / 2


@pytest.mark.slow
def test_a_map_of_exact_floats_is_accepted_here_and_called_a_gpus_fault(
    good: Path, target: Path, tmp_path: Path
) -> None:
    draft = write(tmp_path / "draft", *d2t("f32")(*read(good)))
    report = checked(draft, target)
    assert deciding(report) == {"d2t-type"}
    assert "accepted on the CPU backend" in report.cause
    assert accept_length(target, draft, tmp_path / "server") == pytest.approx(GOOD_ACCEPT_LENGTH, abs=0.1)


@pytest.mark.slow
def test_eagle_algorithm_accepts_nothing_of_an_eagle3_drafter(
    good: Path, target: Path, tmp_path: Path
) -> None:
    report = checked(good, target, "EAGLE")
    assert (report.kind, deciding(report)) == (WILL_NOT_ACCEPT, {"algorithm"})
    argv = ("--speculative-algorithm", "EAGLE", *eagle3(good)[2:])
    assert accept_length(target, good, tmp_path, *argv) == NOTHING_ACCEPTED


# Change, the findings that decide, and what the server's log must hold when it has ended.
ENDS: dict[str, tuple[Change, set[str], str]] = {
    "no-torch-dtype": (without_key("torch_dtype"), {"dtype"}, "same dtype"),
    "layer-never-captured": (layers(1, 2, 5), {"aux-layers-edge"}, "shapes cannot be multiplied"),
    "layer-twice": (layers(1, 2, 2), {"aux-layers"}, "shapes cannot be multiplied"),
    "layer-beyond": (layers(1, 2, 9), {"aux-layers"}, "shapes cannot be multiplied"),
    "other-width": (other_width, {"hidden-size"}, "shapes cannot be multiplied"),
    "map-beyond": (d2t("beyond"), {"d2t-range"}, "index out of range"),
    "absolute-ids": (d2t("ids"), {"d2t-absolute"}, "index out of range"),
}


def end_of_server(target: Path, folder: Path, *argv: str) -> str:
    """Serve, answer, and return the log of a server that ended by itself before or while it answered."""
    with pytest.raises((AssertionError, OSError)), serving(target, folder, *argv) as server:
        server.generate("Ada builds", 120)
    return (folder / "server.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_the_first_forward_ends_as_predicted(name: str, good: Path, target: Path, tmp_path: Path) -> None:
    change, findings, error = ENDS[name]
    draft = write(tmp_path / "draft", *change(*read(good)))
    report = checked(draft, target)
    assert findings <= deciding(report), report.cause
    assert foretold(report, error), report.deciding
    assert error in end_of_server(target, tmp_path, *eagle3(draft))


@pytest.mark.slow
def test_no_draft_path_loads_the_target_as_its_own_draft(good: Path, target: Path, tmp_path: Path) -> None:
    flags = {"context-length": "2048", "speculative-algorithm": "EAGLE3"}
    report = check_drafter(describe_folder(good, target, sglang_version=VERSION, flags=flags))
    assert (report.kind, deciding(report)) == (WILL_NOT_LOAD, {"draft-path"})
    argv = eagle3(good)
    assert argv[2] == "--speculative-draft-model-path"
    assert "hot_token_id" in end_of_server(target, tmp_path, *argv[:2], *argv[4:])


def test_the_twins_differ_in_their_attention_only(good: Path) -> None:
    config, items = read(good)
    _, twin = mla_twin(config, items)
    for name in ("fc.weight", "lm_head.weight"):
        assert (raw(twin, name) == raw(items, name)).all()
