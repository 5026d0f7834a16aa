"""Each way in which a drafter does not fit, made from a good description by one change."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from test_drafter_cases import CASES

from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.description import MapFacts
from deploy_kit.drafter.findings import Finding, Report
from deploy_kit.drafter.paste import json_tables, parse_paste
from deploy_kit.drafter.vocabulary import check_map_values

TARGET = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
    },
}


class Paste:
    """A good description, changed piece by piece and then pasted."""

    def __init__(self, number: str) -> None:
        text = yaml.safe_load(next(c for c in CASES if c.stem.startswith(f"drafter-{number}")).read_text())[
            "input"
        ]
        (self.config, _), _, _ = json_tables(text)
        self.config["max_position_embeddings"] = 262144
        self.target: dict[str, Any] = copy.deepcopy(TARGET)
        self.rows = [
            line
            for line in text.split("\n")
            if (line.rstrip().endswith("]") and "16  [" in line) or "I64" in line or "BOOL" in line
        ]
        self.extra = ""

    def drop(self, ending: str) -> Paste:
        self.rows = [row for row in self.rows if not row.split()[0].endswith(ending)]
        return self

    def change(self, ending: str, old: str, new: str) -> Paste:
        self.rows = [row.replace(old, new) if row.split()[0].endswith(ending) else row for row in self.rows]
        return self

    def with_layers(self, ids: list[Any]) -> Paste:
        self.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
        return self

    def report(self, extra: str = "") -> Report:
        text = (
            f"--- draft config.json\n{json.dumps(self.config, indent=1)}\n--- target "
            f"config.json\n{json.dumps(self.target)}\n"
            "--- safetensors header (name dtype shape)\n" + "\n".join(self.rows) + f"\n{extra}"
        )
        return check_drafter(parse_paste(text))


def llama() -> Paste:
    return Paste("01")


def mla() -> Paste:
    return Paste("13").with_layers([1, 29, 57])


@pytest.mark.parametrize("good", [llama, mla])
def test_good(good: Callable[[], Paste]) -> None:
    report = good().report()
    assert report.verdict == "ok", report.cause
    assert good().report("--- versions\nsglang 0.5.23\n").verdict == "ok"


def expect(report: Report, verdict: str, kind: str | None, *words: str) -> None:
    assert (report.verdict, report.kind) == (verdict, kind), report.cause
    for word in words:
        assert word in report.cause + " " + report.remedy, report.cause
    if verdict != "ok":
        assert report.remedy


NO_LOAD, NO_ACCEPT = "will not load", "loads but will not accept"


def test_mla_class_in_an_old_version() -> None:
    expect(
        mla().report("--- versions\nsglang 0.5.11\n"),
        "reject",
        NO_LOAD,
        "0.5.12",
        "Eagle3DeepseekV2ForCausalLM",
    )


def test_unknown_class_and_nested_names() -> None:
    paste = mla()
    paste.config["architectures"] = ["DeepseekV3ForCausalLMEagle3"]
    expect(paste.report(), "reject", NO_LOAD, "DeepseekV3ForCausalLMEagle3")


def test_two_or_four_layers_in_fc() -> None:
    for width in ("14336", "28672"):
        report = llama().change("fc.weight", "21504", width).report()
        expect(report, "reject", NO_LOAD, width)
        assert any("Attempted to load weight" in finding.error for finding in report.findings)


def test_other_target_hidden_size() -> None:
    paste = llama()
    paste.target["text_config"]["hidden_size"] = 5120
    expect(paste.report(), "reject", NO_LOAD, "7168", "5120")


def test_head_rows() -> None:
    expect(llama().change("lm_head.weight", "32000", "16000").report(), "reject", NO_LOAD, "16000", "32000")


def test_tied_head() -> None:
    paste = mla().drop("lm_head.weight")
    paste.config["tie_word_embeddings"] = True
    expect(paste.report(), "reject", NO_ACCEPT, "tie_word_embeddings", "target's embedding")
    paste.target["text_config"]["tie_word_embeddings"] = True
    assert paste.report().verdict == "ok"
    del paste.target["text_config"]["tie_word_embeddings"]
    assert paste.report().verdict == "warn"


def test_borrowed_head_is_fine() -> None:
    paste = mla().drop("lm_head.weight")
    paste.config["draft_vocab_size"] = None
    report = paste.report()
    assert report.verdict == "ok" and "uses the target's head" in report.cause


def test_llama_without_the_draft_size_key() -> None:
    paste = llama()
    del paste.config["draft_vocab_size"]
    report = paste.report()
    assert report.verdict == "reject" and "draft_vocab_size is not in config.json" in report.cause


def test_other_vocabulary() -> None:
    paste = llama()
    paste.target["text_config"]["vocab_size"] = 151936
    expect(paste.report(), "reject", NO_ACCEPT, "163840", "151936")
    paste.target["text_config"]["vocab_size"] = 163000
    assert paste.report().verdict == "warn"


def test_map_of_another_length_or_type() -> None:
    expect(llama().change("d2t", "32000", "30000").report(), "reject", NO_ACCEPT, "d2t has 30000 entries")
    rounded = llama().change("d2t", "I64", "BF16").report()
    expect(rounded, "reject", NO_ACCEPT, "d2t is stored as BF16", "so is the answer itself")
    exact = llama().change("d2t", "I64", "F32").report()
    expect(exact, "reject", NO_ACCEPT, "d2t is stored as F32", "a GPU takes whole ids only")
    assert all("int64 ids only" in report.deciding[0].error for report in (rounded, exact))
    expect(llama().change("d2t", "I64", "I16").report(), "reject", NO_ACCEPT, "too small for token ids")
    assert llama().change("d2t", "I64", "I32").report().verdict == "ok"


def test_map_values_in_the_paste() -> None:
    absolute = "--- d2t (first 12)\n0 1 2 3 4 5 6 8 11 12 13 15 ...\n"
    expect(llama().report(absolute), "reject", NO_ACCEPT, "absolute")
    offsets = "--- d2t (first values)\n[0, 0, 0, 0, 1, 1, 1, 5, 5, ...]\n"
    assert llama().report(offsets).verdict == "ok"
    expect(llama().report("--- d2t\nmin 0 max 163000\n"), "reject", NO_ACCEPT, "absolute")
    expect(llama().report("--- d2t\nmin 0 max 0\n"), "reject", NO_ACCEPT, "zeros")
    expect(llama().report("--- d2t\nmin=0 max=200000\n"), "reject", NO_ACCEPT, "outside")


def test_map_values_printed_by_python() -> None:
    printed = ">>> d2t[:10]\ntensor([0, 1, 2, 3, 4, 5, 6, 7, 9, 10])\n>>> d2t.max()\ntensor(163839)\n"
    expect(llama().report(f"--- python\n{printed}"), "reject", NO_ACCEPT, "absolute")
    end = "--- python\nd2t[:4] = [0, 0, 1, 1]\nd2t[-4:] = [163810, 163811, 163830, 163839]\n"
    expect(llama().report(end), "reject", NO_ACCEPT, "absolute")
    fine = "--- python\nd2t = tensor([0, 0, 0, 1, ..., 131830, 131840])\n"
    assert llama().report(fine).verdict == "ok"
    # A shape is no value.
    assert llama().report("--- python\nd2t: [32000]\n").verdict == "ok"


def test_sister_model_in_a_sentence() -> None:
    for words in (
        "--- d2t against the target's own drafter\n252 of 32,000 positions agree\n",
        "--- notes\nthe two vocabularies agree at only 252 of 32,000 positions\n",
    ):
        expect(llama().report(words), "reject", NO_ACCEPT, "agrees with the reference at 252 of 32000")
    assert llama().report("--- notes\n32000 of 32000 d2t entries match\n").verdict == "ok"


def test_sister_model_by_reference() -> None:
    both = "--- d2t (first 6)\n0 0 0 1 1 2\n--- reference d2t (first 6)\n0 3 4 9 9 9\n"
    expect(llama().report(both), "reject", NO_ACCEPT, "agrees with the reference at 1 of 6")


def findings(values: Any, vocabulary: int, mask: Any = None, *, pruned: bool = True) -> list[Finding]:
    facts = MapFacts(values=np.array(values, dtype=np.int64))
    return [f for f in check_map_values(facts, len(values), vocabulary, pruned, mask) if f.verdict != "ok"]


def test_map_values() -> None:
    ids = np.arange(0, 400, 2)[:150]
    offsets = ids - np.arange(150)
    mask = np.zeros(400, dtype=bool)
    mask[ids] = True
    assert findings(offsets, 400, mask) == []
    assert findings(ids, 400, mask)[0].id == "d2t-absolute"
    assert findings(np.arange(0, 400, 4), 400)[0].id == "d2t-absolute"
    assert findings(np.zeros(150), 400)[0].id == "d2t-zeros"
    assert findings(offsets + 300, 400)[0].id == "d2t-range"
    assert findings(offsets - 5, 400)[0].id == "d2t-range"
    assert findings(np.zeros(400), 400, pruned=False) == []
    assert [f.id for f in findings([0, -1, 5], 400)] == ["d2t-duplicates"]
    assert [f.id for f in findings([7, 3, 0], 400)] == ["d2t-order"]
    assert findings(offsets, 400, np.roll(mask, 1))[0].id == "t2d"


@pytest.mark.parametrize(
    ("ids", "verdict", "word"),
    [
        ([2, 30, 58], "ok", "[2, 30, 58]"),
        ([1, 29, 59], "ok", "captured before layers [2, 30, 60]"),
        ([-1, 30, 58], "reject", "does not exist"),
        ([2, 2, 58], "reject", "twice"),
        ([58, 30, 2], "warn", "rising"),
        ([1, 29, 60], "warn", "last output is out of reach"),
        ([], "reject", "layer numbers"),
        ([2, "30", 58], "reject", "layer numbers"),
    ],
)
def test_auxiliary_ids(ids: list[Any], verdict: str, word: str) -> None:
    paste = llama().with_layers(ids)
    report = paste.report()
    assert report.verdict == verdict, report.cause
    assert word in report.cause


def test_auxiliary_off_and_ids_outside() -> None:
    paste = llama()
    paste.config["eagle_config"]["use_aux_hidden_state"] = False
    expect(paste.report(), "reject", NO_ACCEPT, "use_aux_hidden_state")
    paste = mla()
    del paste.config["eagle_config"]
    paste.config["eagle_aux_hidden_state_layer_ids"] = [5, 20, 40]
    expect(paste.report(), "warn", NO_ACCEPT, "outside eagle_config")


def test_several_layers() -> None:
    paste = mla()
    paste.config["num_hidden_layers"] = 2
    report = paste.report("--- versions\nsglang 0.5.23\n")
    assert report.verdict == "reject" and "exactly one" in report.cause


def test_context() -> None:
    paste = llama()
    paste.config["max_position_embeddings"] = 2048
    expect(paste.report(), "reject", NO_LOAD, "2048", "262144")
    allowed = paste.report(
        "--- launch\nSGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python -m sglang.launch_server\n"
    )
    expect(allowed, "warn", NO_ACCEPT, "2048")
    assert paste.report("--- flags\n--context-length 2048\n").verdict == "ok"


@pytest.mark.parametrize(
    ("flags", "verdict", "word"),
    [
        ("--speculative-algorithm EAGLE --speculative-draft-model-path d", "reject", "1.00"),
        ("--speculative-algorithm EAGLE3", "reject", "target itself is loaded"),
        (
            "--model-path /m/t --speculative-algorithm EAGLE3 --speculative-draft-model-path /m/t",
            "reject",
            "path is the target's (/m/t)",
        ),
        ("--model-path /m/t --speculative-algorithm EAGLE3 --speculative-draft-model-path /m/d", "ok", ""),
        (
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --attention-backend triton",
            "ok",
            "",
        ),
        ("--attention-backend trtllm_mla", "reject", "MLA models only"),
        ("--attention-backend trtllm_mla --speculative-draft-attention-backend flashinfer", "ok", ""),
        ("--quantization awq", "reject", "inherits --quantization awq"),
        ("--quantization awq --speculative-draft-model-quantization unquant", "ok", ""),
        (
            "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8",
            "warn",
            "4",
        ),
        (
            "--speculative-num-steps 1 --speculative-eagle-topk 2 --speculative-num-draft-tokens 9",
            "reject",
            "tree of 3",
        ),
        ("--speculative-eagle-topk 2", "reject", "without --speculative-num-steps"),
        ("--tp 6", "reject", "divided"),
        ("--tp 8", "ok", ""),
    ],
)
def test_server_flags(flags: str, verdict: str, word: str) -> None:
    report = llama().report(f"--- server flags\n{flags}\n")
    assert report.verdict == verdict, report.cause
    assert word in report.cause


TREE = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"


@pytest.mark.parametrize(
    ("paste", "backend", "verdict"),
    [
        (mla, "--attention-backend flashinfer", "reject"),
        (mla, "--attention-backend triton", "ok"),
        (mla, "--attention-backend flashinfer --speculative-draft-attention-backend triton", "ok"),
        (llama, "--attention-backend flashinfer", "ok"),
        (llama, "--attention-backend trtllm_mha", "reject"),
    ],
)
def test_trees_where_a_backend_drafts_chains_only(
    paste: Callable[[], Paste], backend: str, verdict: str
) -> None:
    report = paste().report(f"--- server flags\n{backend} {TREE}\n")
    assert report.verdict == verdict, report.cause
    if verdict == "reject":
        assert [finding.id for finding in report.deciding] == ["topk"]


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True])
@pytest.mark.parametrize("key", ["num_hidden_layers", "draft_vocab_size"])
def test_counts_that_are_none(key: str, value: Any) -> None:
    paste = llama()
    paste.config[key] = value
    expect(paste.report(), "reject", NO_LOAD, f"{key} is {value!r}")


@pytest.mark.parametrize("odd", ["\u00b2", "9" * 5000, "-1", "many", "1e3"])
def test_flags_that_are_no_counts_say_nothing(odd: str) -> None:
    flags = f"--tp {odd} --speculative-num-steps {odd} --context-length {odd} --speculative-eagle-topk {odd}"
    assert llama().report(f"--- server flags\n{flags}\n").verdict == "ok"


def test_quantized_target() -> None:
    paste = llama()
    paste.target["quantization_config"] = {"quant_method": "compressed-tensors"}
    expect(
        paste.report(),
        "warn",
        NO_LOAD,
        "compressed-tensors",
        "--speculative-draft-model-quantization unquant",
    )
    known = paste.report("--- versions\nsglang 0.5.23\n")
    assert known.verdict == "ok" and "--speculative-draft-model-quantization unquant" in known.flags


def test_missing_and_unread_weights() -> None:
    expect(
        llama().drop("q_proj.weight").report(),
        "reject",
        NO_ACCEPT,
        "layers.0.self_attn.q_proj.weight",
        "uninitialised",
    )
    assert llama().drop("hidden_norm.weight").report().verdict == "warn"
    paste = mla()
    paste.rows = [row if row.startswith("lm_head") else f"model.{row}" for row in paste.rows]
    expect(paste.report(), "reject", NO_ACCEPT, "`model.` in front")
    paste = llama()
    paste.rows.append("midlayer.self_attn.q_proj.bias  BF16  [8192]")
    expect(paste.report(), "warn", NO_ACCEPT, "passes over midlayer.self_attn.q_proj.bias")


def test_layer_names_of_old_versions() -> None:
    paste = llama()
    paste.rows = [row.replace("midlayer.", "layers.0.") for row in paste.rows]
    assert paste.report().verdict == "ok"
    expect(paste.report("--- versions\nsglang 0.5.11\n"), "reject", NO_ACCEPT, "midlayer.")


def test_own_embedding_where_the_width_differs() -> None:
    paste = llama()
    paste.config["target_hidden_size"] = 7168
    assert paste.report().verdict == "ok"
    paste.config["hidden_size"] = 4096
    for ending, old, new in (("fc.weight", "[7168,", "[4096,"), ("proj.weight", "14336", "8192")):
        paste.change(ending, old, new)
    report = paste.report()
    assert report.verdict == "reject" and "no embed_tokens" in report.cause
    paste.config["target_hidden_size"] = None
    assert "target_hidden_size is null" in paste.report().cause


def test_quantized_weights_without_config() -> None:
    paste = llama().change("q_proj.weight", "BF16", "F8_E4M3")
    expect(paste.report(), "reject", NO_ACCEPT, "F8_E4M3")
    paste.rows.append("midlayer.self_attn.q_proj.weight_scale  F32  [1]")
    expect(paste.report(), "reject", NO_ACCEPT, "scales are passed over")


@pytest.mark.parametrize(
    ("config", "rows", "word"),
    [
        ({"architectures": ["DeepseekV3ForCausalLMNextN"], "num_hidden_layers": 1}, [], "NextN"),
        (
            {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64},
            ["model.layers.61.eh_proj.weight BF16 [64, 128]", "model.layers.61.enorm.weight BF16 [64]"],
            "NextN",
        ),
        ({"architectures": ["DFlashDraftModel"], "num_hidden_layers": 5, "block_size": 16}, [], "DFlash"),
        ({"medusa_num_heads": 4, "medusa_num_layers": 1}, ["medusa_head.0.weight BF16 [64, 64]"], "Medusa"),
        (
            {
                "architectures": ["KimiK25ForConditionalGeneration"],
                "text_config": {"num_hidden_layers": 61, "hidden_size": 7168},
            },
            ["language_model.model.embed_tokens.weight BF16 [163840, 7168]"],
            "target model",
        ),
        (
            {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": 64, "num_hidden_layers": 1},
            ["fc.weight F16 [64, 128]"],
            "EAGLE-1/2",
        ),
    ],
)
def test_other_kinds_of_checkpoint(config: dict[str, Any], rows: list[str], word: str) -> None:
    listing = "--- weights\n" + "\n".join(rows) if rows else ""
    report = check_drafter(parse_paste(f"--- draft config.json\n{json.dumps(config)}\n{listing}\n"))
    assert (report.verdict, report.kind) == ("reject", NO_LOAD)
    assert word in report.cause
    assert len([finding for finding in report.findings if finding.verdict == "reject"]) == 1


def test_norm_before_residual_and_made_for() -> None:
    paste = llama()
    paste.config["norm_before_residual"] = True
    expect(paste.report(), "warn", NO_ACCEPT, "norm_before_residual")
    paste = llama()
    paste.config["base_model_name_or_path"] = "moonshotai/Kimi-K2-Instruct"
    paste.target["_name_or_path"] = "moonshotai/Kimi-K2.5"
    expect(paste.report(), "warn", NO_ACCEPT, "Kimi-K2-Instruct", "compare")


def test_observed_acceptance() -> None:
    log = "--- log\nDecode batch, #running-req: 1, accept len: 1.00, accept rate: 0.00\n"
    expect(llama().report(log), "reject", NO_ACCEPT, "1.00")
    metric = '--- metrics\n# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length{model="k"} 1.0\n'
    expect(llama().report(metric), "reject", NO_ACCEPT, "1.00")
    for fine in ("accept len: 2.91", "accept len: 0.00", 'spec_accept_length_bucket{le="1.0"} 1.0'):
        assert llama().report(f"--- log\n{fine}\n").verdict == "ok"
