"""Reading pasted descriptions: forms people use, partial ones, and anything at all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.paste import parse_flags, parse_paste
from deploy_kit.errors import DeployKitError

CONFIG = '{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64}'


@pytest.mark.parametrize(
    "row",
    [
        "fc.weight  BF16  [64, 192]",
        "fc.weight: torch.Size([64, 192]) torch.bfloat16",
        "| fc.weight | BF16 | [64, 192] |",
        "fc.weight (64, 192) bfloat16",
        '"fc.weight": dtype=bf16 shape=[64,192]',
        "fc.weight BF16 64x192",
        "fc.weight BF16 64 \u00d7 192",
        "fc.weight\tBF16\t64\t192",
        "fc.weight BF16[64,192]",
        "fc.weight  24576  BF16  [64, 192]",
        "Tensor fc.weight: shape=(64, 192), dtype=torch.bfloat16",
        "- fc.weight: [64, 192] BF16",
        "1. fc.weight BF16 [64, 192]",
        "| `fc.weight` | `BF16` | `[64, 192]` |",
        '["fc.weight", "BF16", [64, 192]],',
        "('fc.weight', torch.Size([64, 192]), torch.bfloat16)",
    ],
)
def test_forms_of_a_listing(row: str) -> None:
    tensors = parse_paste(f"--- draft config.json\n{CONFIG}\n--- weights\n{row}\n").tensors
    assert tensors is not None
    assert (tensors["fc.weight"].dtype, tensors["fc.weight"].shape) == ("BF16", (64, 192))


def test_a_listing_without_types_leaves_them_unknown() -> None:
    rows = "fc.weight: [64, 192]\nd2t torch.Size([32])\nmat1 and mat2 shapes cannot be multiplied (4x7168)"
    known = parse_paste(f"--- draft config.json\n{CONFIG}\n--- weights\n{rows}\n")
    assert known.tensors is not None
    assert {name: (t.dtype, t.shape) for name, t in known.tensors.items()} == {
        "fc.weight": ("?", (64, 192)),
        "d2t": ("?", (32,)),
    }
    assert not {f.id for f in check_drafter(known).findings} & {"weight-type", "d2t-type"}


@pytest.mark.parametrize(
    "config",
    [
        "{'architectures': ['LlamaForCausalLMEagle3'], 'tie_word_embeddings': False, 'rope_scaling': None}",
        'LlamaConfig {\n "architectures": ["LlamaForCausalLMEagle3"]\n}',
        "architectures: [LlamaForCausalLMEagle3]\nhidden_size: 64\n",
    ],
)
def test_configs_as_python_and_yaml_print_them(config: str) -> None:
    known = parse_paste(f"--- draft config.json\n{config}\n--- weights\nfc.weight BF16 [64, 192]\n")
    assert known.config is not None and known.config["architectures"] == ["LlamaForCausalLMEagle3"]


def test_raw_header_and_scalars() -> None:
    entry = '{"dtype": "F16", "shape": [2, 6], "data_offsets": [0, 24]}'
    header = f'{{"__metadata__": {{"format": "pt"}}, "fc.weight": {entry}}}'
    known = parse_paste(f"=== draft config.json ===\n{CONFIG}\n=== header ===\n{header}\n")
    assert known.tensors is not None and known.tensors["fc.weight"].shape == (2, 6)
    scale = parse_paste(f"# draft config\n{CONFIG}\n# tensors\nx.weight_scale F32 []\n").tensors
    assert scale is not None and scale["x.weight_scale"].shape == ()


def test_python_and_shortened_configs_are_mended_and_marked() -> None:
    known = parse_paste(
        '--- draft config.json\n{"architectures": ["A"],\n "tie_word_embeddings": False,\n ...\n}\n'
    )
    assert known.config == {"architectures": ["A"], "tie_word_embeddings": False}
    assert not known.config_complete


def test_nothing_given_is_unknown_not_guessed() -> None:
    report = check_drafter(parse_paste(f"--- draft config.json\n{CONFIG}\n"))
    assert report.verdict != "ok"
    unknown = {finding.id for finding in report.findings if finding.verdict == "unknown"}
    assert {"weights", "target"} <= unknown
    assert "draft_vocab" not in report.facts and "target_layers" not in report.facts


def test_shortened_listing_is_unknown() -> None:
    config = CONFIG[:-1] + ', "draft_vocab_size": 32, "vocab_size": 64}'
    report = check_drafter(
        parse_paste(f"--- draft config.json\n{config}\n--- weights\nfc.weight BF16 [64, 192]\n...\n")
    )
    assert report.verdict == "warn"
    assert {f.id for f in report.findings if f.verdict == "reject"} == set()


def test_broken_config_is_said() -> None:
    known = parse_paste('--- draft config.json\n{"a": \n--- weights\nfc.weight BF16 [64, 192]\n')
    assert any("cannot be read" in remark for remark in known.remarks)
    assert check_drafter(known).verdict == "warn"


def test_empty_is_an_error() -> None:
    for text in ("", "hello", "--- other files\nREADME.md\n"):
        with pytest.raises(DeployKitError, match="no drafter"):
            parse_paste(text)


def test_versions_and_flags() -> None:
    text = (
        f'--- draft config.json\n{CONFIG[:-1]}, "transformers_version": '
        '"4.57.0"}}\n--- image\nlmsysorg/sglang:v0.5.12.post1\n'
        "--- log\nserver_args=ServerArgs(attention_backend='trtllm_mla', tp_size=8, quantization=None)\n"
    )
    known = parse_paste(text)
    assert known.sglang_version == "0.5.12.post1"
    assert known.flags == {"attention-backend": "trtllm_mla", "tp-size": "8"}
    assert parse_flags("--enable-metrics --tp=8 --draft 'a b'") == {
        "enable-metrics": "",
        "tp": "8",
        "draft": "a b",
    }


PIECES = st.sampled_from(
    [
        "--- draft config.json\n",
        "--- target config.json\n",
        "--- weights\n",
        "--- d2t\n",
        "--- log\n",
        "{",
        "}",
        '"hidden_size": ',
        "[",
        "]",
        "7168",
        ",",
        '"architectures": ["LlamaForCausalLMEagle3"]',
        "lm_head.weight BF16 [32, 7168]\n",
        "...",
        "\n",
        "null",
        '"eagle_config": ',
        '"draft_vocab_size": 32,',
        "-1 ",
        "1e999",
        "\x00",
        "NaN",
        '"text_config":',
        "d2t I64 [99999999999999999999]\n",
        CONFIG,
        "max 5 ",
        '"quantization_config": 3,',
        '"vocab_size": 64,',
        "--speculative-algorithm EAGLE3 ",
        "d2t[:4] = [0, 1, 2, 3]",
        "d2t.max()\ntensor(99)",
        "252 of 32000 positions agree ",
        "vocab ",
        "'",
        "{'a': (1, 2), 3: {4}}",
        "a: &x [*x]\n",
        "spec_accept_length{a} 1",
        "x.weight: (",
        "\x1b[31m",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=12), max_size=30).map("".join))
def test_anything_gives_a_report_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(DeployKitError):
        assert check_drafter(parse_paste(text)).as_dict()["verdict"] in ("ok", "warn", "reject")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "architectures",
        "model_type",
        "hidden_size",
        "vocab_size",
        "draft_vocab_size",
        "eagle_config",
        "fc_norm",
        "num_hidden_layers",
        "tie_word_embeddings",
        "rope_scaling",
        "quantization_config",
        "text_config",
        "transformer_layer_config",
        "torch_dtype",
        "target_hidden_size",
        "num_attention_heads",
        "max_position_embeddings",
        "eagle_aux_hidden_state_layer_ids",
        "head_dim",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=8), st.dictionaries(KEYS, JSON, max_size=4), st.booleans())
def test_any_values_in_a_config_give_a_report(
    config: dict[str, object], target: dict[str, object], named: bool
) -> None:
    from deploy_kit.drafter.description import Description, Listed

    if named:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
    rows = {"fc.weight": Listed("fc.weight", "BF16", (64, 192)), "d2t": Listed("d2t", "I64", (32,))}
    for from_files in (True, False):
        report = check_drafter(Description("x", config, target=target, tensors=rows, from_files=from_files))
        assert report.verdict in ("ok", "warn", "reject")
