"""What `deploy-kit drafter check` and `remap` say, held against the real SGLang.

Every kind of misfit is made from one good drafter by one change. Loading is tried in one process with
SGLang's own loader; what shows only in a forward takes a server: three starts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_server import ENGINE_ENVIRONMENT, serving
from test_serving import eagle3

from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Report
from deploy_kit.drafter.layout import expected_parameters
from deploy_kit.drafter.local import describe_folder
from deploy_kit.drafter.remap import plan_remap, vocabulary_of, write_remap
from deploy_kit.drafter.weights_file import header_bytes, read_array, read_weights

HERE = Path(__file__).parent
VERSION = "0.5.23"
# Name, dtype, shape, bytes.
Item = tuple[str, str, tuple[int, ...], bytes]
Config = dict[str, Any]
Change = Callable[[Config, list[Item]], tuple[Config, list[Item]]]


def write(folder: Path, config: Config, items: list[Item]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    layout = [(name, dtype, shape, len(data)) for name, dtype, shape, data in items]
    data = b"".join(piece for *_, piece in items)
    (folder / "model.safetensors").write_bytes(header_bytes(layout, {"format": "pt"}) + data)
    return folder


def read(folder: Path) -> tuple[Config, list[Item]]:
    tensors = read_weights(folder).tensors.values()
    items = [(t.name, t.dtype, t.shape, read_array(t).tobytes()) for t in tensors]
    return json.loads((folder / "config.json").read_text()), items


def keys(**changes: Any) -> Change:
    return lambda config, items: ({**config, **changes}, items)


def without_key(key: str) -> Change:
    return lambda config, items: ({name: value for name, value in config.items() if name != key}, items)


def without(ending: str) -> Change:
    return lambda config, items: (config, [item for item in items if not item[0].endswith(ending)])


def renamed(old: str, new: str) -> Change:
    return lambda config, items: (config, [(name.replace(old, new), *rest) for name, *rest in items])


def narrow_fc(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    made = []
    for name, dtype, shape, data in items:
        if name == "fc.weight":
            shape, data = (shape[0], shape[1] * 2 // 3), data[: len(data) * 2 // 3]
        made.append((name, dtype, shape, data))
    return config, made


def layers(*ids: int) -> Change:
    return keys(eagle_config={"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True})


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
    "short-context": (
        keys(max_position_embeddings=1024),
        WILL_NOT_LOAD,
        "greater than the derived context_length",
    ),
    "no-query": (without("q_proj.weight"), WILL_NOT_ACCEPT, None),
    "no-head": (without("lm_head.weight"), WILL_NOT_ACCEPT, None),
    "no-map": (without("d2t"), WILL_NOT_ACCEPT, None),
    "tied": (
        lambda c, i: without("lm_head.weight")(*keys(tie_word_embeddings=True)(c, i)),
        WILL_NOT_ACCEPT,
        None,
    ),
}


def mla_config(config: Config) -> Config:
    """The rehearsal drafter's sizes with latent attention: to construct and load, never served."""
    return {
        **config,
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "mscale_all_dim": 1.0,
        },
    }


def mla_items(config: Config) -> list[Item]:
    made: list[Item] = []
    for parameter in expected_parameters("Eagle3DeepseekV2ForCausalLM", config, VERSION):
        shape = tuple(size or 0 for size in parameter.shape)
        made.append((parameter.name, "BF16", shape, bytes(2 * int(np.prod(shape)))))
    return made


@pytest.fixture(scope="module")
def target(models: Path) -> Path:
    return models / "target"


@pytest.fixture(scope="module")
def variants(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("variants")
    good = read(models / "drafters" / "accept-4.00")
    made = {name: write(folder / name, *change(*good)) for name, (change, _, _) in CHANGES.items()}
    mla = {**mla_config(good[0]), "draft_vocab_size": None, "norm_output": False}
    items = mla_items(mla)
    made["mla-borrowed"] = write(
        folder / "mla-borrowed", mla, [item for item in items if item[0] != "lm_head.weight"]
    )
    made["mla-two-layers"] = write(folder / "mla-two-layers", {**mla, "num_hidden_layers": 2}, items)
    own_head = {**mla, "draft_vocab_size": mla["vocab_size"]}
    made["mla-no-head"] = write(
        folder / "mla-no-head", own_head, [i for i in items if i[0] != "lm_head.weight"]
    )
    return made


@pytest.fixture(scope="module")
def loaded(target: Path, variants: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """What SGLang made of each variant."""
    command = [sys.executable, str(HERE / "load_drafters.py"), str(target), *map(str, variants.values())]
    done = subprocess.run(
        command,
        env={**os.environ, **ENGINE_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    results = {Path(result["drafter"]).name: result for result in map(json.loads, lines)}
    assert set(results) == set(variants), done.stderr[-4000:]
    return results


def checked(draft: Path, target: Path) -> Report:
    flags = {
        "context-length": "2048",
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": str(draft),
    }
    return check_drafter(describe_folder(draft, target, sglang_version=VERSION, flags=flags))


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
        assert any(error in finding.error or error in finding.cause for finding in report.deciding), (
            report.deciding
        )


def test_the_map_is_read_as_offsets(models: Path, loaded: dict[str, dict[str, Any]]) -> None:
    assert loaded["good"]["map"] == vocabulary_of(models / "drafters" / "accept-4.00")[0].tolist()
    assert loaded["no-map"]["map"] is None
    assert loaded["tied"]["tied"] is True


def test_mla_class(target: Path, variants: dict[str, Path], loaded: dict[str, dict[str, Any]]) -> None:
    assert loaded["mla-borrowed"].get("class") == "Eagle3DeepseekV2ForCausalLM", loaded["mla-borrowed"]
    assert loaded["mla-borrowed"]["borrows_head"] is True
    assert {f.id for f in checked(variants["mla-borrowed"], target).deciding} <= {"values"}
    assert "only supports 1 layer" in loaded["mla-two-layers"]["error"]
    assert "takes exactly one" in checked(variants["mla-two-layers"], target).cause
    # It loads, with a head of its own that nothing fills: the prediction is that it does not accept.
    assert loaded["mla-no-head"]["borrows_head"] is False
    assert "lm_head missing" in checked(variants["mla-no-head"], target).cause


def accept_length(target: Path, drafter: Path, folder: Path) -> float:
    folder.mkdir()
    with serving(target, folder, *eagle3(drafter)) as server:
        return float(server.generate("Ada builds", 120)["meta_info"]["spec_accept_length"])


@pytest.mark.slow
def test_remap_brings_acceptance_back(models: Path, target: Path, tmp_path: Path) -> None:
    good = models / "drafters" / "accept-4.00"
    config, items = read(good)
    order = vocabulary_of(good)[0]
    # Another draft vocabulary: the same tokens, backwards, as a later export might write it over the map.
    backwards = order[::-1]
    offsets = (backwards - np.arange(backwards.size)).astype("<i8").tobytes()
    overwritten = write(
        tmp_path / "overwritten",
        config,
        [(n, d, s, offsets if n == "d2t" else data) for n, d, s, data in items],
    )
    report = checked(overwritten, target)
    assert {finding.id for finding in report.deciding} == {"d2t-order"}, report.cause
    assert accept_length(target, overwritten, tmp_path / "first") == pytest.approx(1.0, abs=0.05)
    plan = plan_remap(overwritten, backwards, None, head_order=order)
    assert (plan.kept, plan.initialised, plan.dropped) == (order.size, 0, 0)
    write_remap(plan, tmp_path / "remapped", initial="mean")
    assert accept_length(target, tmp_path / "remapped", tmp_path / "second") == pytest.approx(4.0, abs=0.1)


@pytest.mark.slow
def test_absent_torch_dtype_ends_the_first_forward(models: Path, target: Path, tmp_path: Path) -> None:
    config, items = read(models / "drafters" / "accept-4.00")
    del config["torch_dtype"]
    draft = write(tmp_path / "draft", config, items)
    report = checked(draft, target)
    assert (report.verdict, report.kind) == ("reject", WILL_NOT_LOAD)
    assert "torch_dtype" in report.cause
    with pytest.raises(AssertionError, match="same dtype"), serving(target, tmp_path, *eagle3(draft)):
        pass
