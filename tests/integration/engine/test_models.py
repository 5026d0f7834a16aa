"""The rehearsal models: same bytes, a tokenizer that says what it reads, predictions that hold for their
weights."""

import json
from pathlib import Path

import pytest
import torch
from deploy_kit_rehearsal import expect
from deploy_kit_rehearsal.builder import ACCEPT_LENGTHS, NotOursError, build_models
from deploy_kit_rehearsal.expect import NgramMemory, Speech
from deploy_kit_rehearsal.words import CIRCLE
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoTokenizer

DRAFTERS = [*(f"accept-{length:.2f}" for length in ACCEPT_LENGTHS), "sister"]
SMALL = Speech(tuple(range(10, 22)), opening=30, assistant=31, words_a_sentence=4, pieces={})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def speech(models: Path) -> Speech:
    return expect.load_speech(models / "target")


def test_the_same_bytes_every_time_and_small(models: Path, tmp_path: Path) -> None:
    assert build_models(tmp_path / "again") is True
    made = contents(models)
    assert contents(tmp_path / "again") == made
    assert sum(map(len, made.values())) < 30e6
    assert sorted(path.name for path in (models / "drafters").iterdir()) == sorted(DRAFTERS)


def test_building_again_changes_nothing(tmp_path: Path) -> None:
    build_models(tmp_path / "models")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "models").rglob("*")}
    assert build_models(tmp_path / "models") is False
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "models").rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["models"], "no scratch folder may stay behind"


def test_a_changed_set_is_made_whole_again(tmp_path: Path) -> None:
    build_models(tmp_path / "models")
    whole = contents(tmp_path / "models")
    (tmp_path / "models" / "target" / "config.json").write_text("{}")
    assert build_models(tmp_path / "models") is True
    assert contents(tmp_path / "models") == whole


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotOursError):
        build_models(tmp_path)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("target", ["target", "target-mla"])
def test_the_tokenizer_gives_back_any_text(models: Path, target: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models / target)

    @settings(max_examples=100, deadline=None)
    @given(st.text(max_size=60))
    def holds(text: str) -> None:
        plain = text.replace("<|", "")
        assert tokenizer.decode(tokenizer.encode(plain)) == plain

    holds()


def test_the_spoken_text_is_read_as_the_tokens_it_was_said_in(models: Path, speech: Speech) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    tokens = expect.expected_tokens(speech, speech.assistant, 400)
    text = expect.expected_text(speech, speech.assistant, 400)
    assert tokenizer.encode(text) == tokens
    assert tokenizer.decode(tokens) == text
    assert text.startswith("Ada builds quiet bridges. Boris carries round candles.")
    assert len(set(tokens)) == len(CIRCLE) + 1


def test_the_chat_template_ends_in_the_assistants_mark(models: Path, speech: Speech) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, Ada!"}]
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokens[-1] == speech.assistant
    assert tokenizer.decode(tokens) == (
        "<|begin|><|system|>Be brief.<|end|><|user|>Hello, Ada!<|end|><|assistant|>"
    )


@pytest.mark.parametrize("target", ["target", "target-mla"])
def test_the_targets_weights_say_the_successor_of_every_token(
    models: Path, target: str, speech: Speech
) -> None:
    weights = load_file(models / target / "model.safetensors")
    tokens = AutoTokenizer.from_pretrained(models / target).__len__()
    last_projections = ("o_proj.weight", "down_proj.weight")
    assert all(not weights[name].any() for name in weights if name.endswith(last_projections))
    logits = weights["model.embed_tokens.weight"][:tokens].float() @ weights["lm_head.weight"].float().T
    said = logits.argmax(dim=1).tolist()
    assert said == [speech.successor(token) for token in range(tokens)]
    best = logits.topk(2, dim=1).values
    assert (best[:, 0] > best[:, 1]).all(), "the next token must be the only best one"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_names_the_successor_except_where_it_is_spoiled(
    models: Path, drafter: str, speech: Speech
) -> None:
    folder = models / "drafters" / drafter
    spoiled = expect.load_never_drafted(folder)
    weights = load_file(folder / "model.safetensors")
    head = weights["lm_head.weight"].float()
    target_of = torch.arange(head.shape[0]) + weights.get(
        "d2t", torch.zeros(head.shape[0], dtype=torch.int64)
    )
    # The place that the target's head gives each token is the one that the drafter's hidden state carries.
    places = load_file(models / "target" / "model.safetensors")["lm_head.weight"].float()
    for token in (*speech.circle, speech.opening):
        named = int(target_of[(head @ places[token]).argmax()])
        assert (named == token) == (token not in spoiled), token
    if "d2t" in weights:
        config = json.loads((folder / "config.json").read_text())
        assert config["draft_vocab_size"] == len(weights["d2t"]) < config["vocab_size"]
        assert weights["t2d"].nonzero().flatten().tolist() == sorted(set(target_of.tolist()))


def test_one_drafter_has_no_map_and_the_sisters_is_wrong(models: Path) -> None:
    maps = {name: load_file(models / "drafters" / name / "model.safetensors").get("d2t") for name in DRAFTERS}
    assert maps["accept-2.00"] is None
    assert torch.equal(maps["accept-4.00"], maps["accept-1.00"])
    assert (maps["sister"] == maps["accept-4.00"]).float().mean() < 0.5


def test_predicted_accept_lengths_are_what_the_folders_are_named_after(models: Path) -> None:
    for length in ACCEPT_LENGTHS:
        manifest = json.loads((models / "drafters" / f"accept-{length:.2f}" / "rehearsal.json").read_text())
        assert manifest["predicted_accept_length"] == length
        assert manifest["rehearsal"] is True
    sister = json.loads((models / "drafters" / "sister" / "rehearsal.json").read_text())
    assert sister["predicted_accept_length"] == pytest.approx(1.5, abs=0.01)


@given(st.integers(0, 12), st.integers(1, 6), st.integers(1, 80), st.integers(0, 40))
def test_the_predicted_verifies_are_those_of_the_walk_token_by_token(
    spoiled_count: int, steps: int, count: int, last_prompt_token: int
) -> None:
    spoiled = {SMALL.circle[place] for place in expect.spread_evenly(len(SMALL.circle), spoiled_count)}
    assert len(spoiled) == spoiled_count
    answer = [SMALL.successor(last_prompt_token)]
    lengths = []
    while len(answer) < count:
        said = 0
        token = answer[-1]
        for _ in range(steps):
            if SMALL.successor(token) in spoiled:
                break
            token = SMALL.successor(token)
            answer.append(token)
            said += 1
        answer.append(SMALL.successor(token))
        lengths.append(said + 1)
    assert expect.expected_accept_lengths(SMALL, spoiled, last_prompt_token, count, steps) == lengths
    assert expect.expected_tokens(SMALL, last_prompt_token, count) == answer[:count]


@given(st.integers(0, 12), st.integers(1, 6))
def test_the_endless_accept_length_is_the_mean_of_a_long_answer(spoiled_count: int, steps: int) -> None:
    spoiled = {SMALL.circle[place] for place in expect.spread_evenly(len(SMALL.circle), spoiled_count)}
    many = 7000
    long_answer = expect.expected_accept_length(SMALL, spoiled, SMALL.circle[-1], many, steps)
    assert expect.circle_accept_length(SMALL.circle, spoiled, steps) == pytest.approx(long_answer, rel=0.01)


@pytest.mark.parametrize("length", [1.0, 1.5, 2.0, 2.75, 3.2, 4.0, 9.0])
def test_any_accept_length_can_be_made(speech: Speech, length: float) -> None:
    spoiled = expect.never_drafted_for(speech.circle, length)
    found = expect.circle_accept_length(speech.circle, spoiled, num_steps=3)
    assert found == pytest.approx(min(length, 4.0), abs=0.02)


def test_an_accept_length_below_one_is_refused(speech: Speech) -> None:
    with pytest.raises(ValueError, match=r"at least 1\.0"):
        expect.never_drafted_for(speech.circle, 0.9)


def test_the_ngram_memory_learns_a_text_by_heart() -> None:
    memory = NgramMemory(SMALL, draft_tokens=8)
    assert memory.serve(SMALL.assistant, 9) == [1] * 8
    again = memory.serve(SMALL.assistant, 9)
    assert again == [8]
