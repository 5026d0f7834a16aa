"""What scripts/gpu/real_engine.py starts: which engines together, with which all-reduce, and the model, the
drafter and the host's file of each. Pure but for the files it writes.

The target has a real model's width and depth (hidden 7168, 61 layers, so 122 all-reduces a forward), dummy
weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL_NAME = "dummy-wide"
VOCABULARY = 32000
HIDDEN = 7168
LAYERS = 61
HEADS = 56
KV_HEADS = 8
# Narrow feed-forwards, so that many servers fit one card; attention is full width. 17.9 GB in bfloat16.
TARGET_INTERMEDIATE = 1024
DRAFTER_INTERMEDIATE = 18432
# SGLang adds up to 1000 to an engine's port for its ranks' rendezvous: engines that start together stay
# apart.
APART = 1100


@dataclass(frozen=True)
class AllReduce:
    """How the ranks add up: flags of the engine and NCCL's environment."""

    flags: Mapping[str, bool] = field(default_factory=dict)
    nccl: Mapping[str, str] = field(default_factory=dict)


_NCCL = {"disable-custom-all-reduce": True}
_NO_P2P = {
    "NCCL_P2P_DISABLE": "1"
}  # host memory between the ranks: the nearest to a PCIe box without peer access
BEST = "nccl-nop2p-best"  # what a probe's receipt says; filled in at run time
ALL_REDUCES: dict[str, AllReduce] = {
    "custom": AllReduce(),
    "nccl-p2p": AllReduce(_NCCL),
    "nccl-nop2p": AllReduce(_NCCL, _NO_P2P),
    "nccl-nop2p-simple": AllReduce(_NCCL, {**_NO_P2P, "NCCL_PROTO": "Simple"}),
    "nccl-nop2p-story": AllReduce(
        _NCCL, {**_NO_P2P, "NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": str(128 * 1024)}
    ),
}


@dataclass(frozen=True)
class Server:
    """One engine to start. `bare`: the plan's own argv without our plug-in; `measuring`: with the plug-in
    that switches ours off and on and marks traces; `wanted`: without it the wave makes no sense."""

    name: str
    profile: str
    port: int
    accept_length: float | None = None
    bare: bool = False
    wanted: bool = True
    all_reduce: str = "custom"
    measuring: bool = False

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Wave:
    """Engines that are started together and measured one at a time. `paired`: measured in turns; `toggled`:
    (engine, streams, blocks) measured with the plug-in off and on; `traced`: (engine, streams) under a
    profiler."""

    servers: tuple[Server, ...]
    tensor_parallel: int = 1
    concurrencies: str = "1,8,32"
    rounds: int = 3
    paired: tuple[tuple[str, str], ...] = ()
    toggled: tuple[tuple[str, int, int], ...] = ()
    traced: tuple[tuple[str, int], ...] = ()
    benched: bool = True
    first_light: tuple[str, str] | None = None  # baseline and EAGLE-3 that `firstlight` looks at as well


def _curve(path: str) -> tuple[Server, ...]:
    return tuple(
        Server(
            f"eagle3-acc{length:.1f}",
            "eagle3",
            31000 + number * APART,
            length,
            all_reduce=path,
            measuring=length == 2.0,
            wanted=length == 2.0,
        )
        for number, length in enumerate((1.0, 1.5, 2.0, 2.5, 3.0), start=1)
    )


def _paths() -> tuple[Server, ...]:
    """EAGLE-3 with every all-reduce; plain decoding with those that "pair-curve" does not have."""
    paths = (*ALL_REDUCES, BEST)
    eagle = [
        Server(f"eagle3-acc2.0-{path}", "eagle3", 31000 + number * APART, 2.0, all_reduce=path,
               measuring=path == "custom", wanted=False)
        for number, path in enumerate(path for path in paths if path != "nccl-nop2p")
    ]  # fmt: skip
    # The simulated accept length changes nothing there; one host's file then serves both.
    plain = [
        Server(f"baseline-{path}", "baseline", 31000 + number * APART, 2.0, all_reduce=path, wanted=False)
        for number, path in enumerate(("custom", "nccl-p2p"), start=len(eagle))
    ]
    return (*eagle, *plain)


WAVES = {
    "profiles": Wave(
        (
            Server("baseline", "baseline", 31000),
            Server("eagle3-acc2.0", "eagle3", 31001, accept_length=2.0),
            Server("baseline-bare", "baseline", 31002, bare=True, wanted=False),
            Server("eagle3-acc2.0-bare", "eagle3", 31003, accept_length=2.0, bare=True, wanted=False),
            Server("ngram", "ngram", 31004, wanted=False),
        ),
        paired=(("baseline", "baseline-bare"), ("eagle3-acc2.0", "eagle3-acc2.0-bare")),
    ),
    "curve": Wave(
        (
            Server("baseline", "baseline", 31000),
            Server("eagle3-acc1.0", "eagle3", 31001, accept_length=1.0),
            Server("eagle3-acc1.5", "eagle3", 31002, accept_length=1.5),
            Server("eagle3-acc2.5", "eagle3", 31003, accept_length=2.5),
            Server("eagle3-acc3.0", "eagle3", 31004, accept_length=3.0),
        ),
    ),
    # The last pair has the plug-in in both: what two starts differ by.
    "cost": Wave(
        (
            Server("baseline-a", "baseline", 31000),
            Server("baseline-a-bare", "baseline", 31001, bare=True),
            Server("baseline-b", "baseline", 31002),
            Server("baseline-b-bare", "baseline", 31003, bare=True),
        ),
        paired=(
            ("baseline-a", "baseline-a-bare"),
            ("baseline-b", "baseline-b-bare"),
            ("baseline-a", "baseline-b"),
            ("baseline-a-bare", "baseline-b-bare"),
        ),
        benched=False,
    ),
    # Two GPUs without peer access: the break-even curve, the plug-in's cost and agreement with a profiler.
    "pair-curve": Wave(
        (
            Server("baseline", "baseline", 31000, all_reduce="nccl-nop2p", measuring=True),
            *_curve("nccl-nop2p"),
            Server("ngram", "ngram", 31000 + 6 * APART, all_reduce="nccl-nop2p", wanted=False),
        ),
        tensor_parallel=2,
        rounds=2,
        toggled=(("eagle3-acc2.0", 1, 12), ("baseline", 1, 8), ("eagle3-acc2.0", 8, 6)),
        traced=(("eagle3-acc2.0", 1), ("eagle3-acc2.0", 8), ("baseline", 1)),
    ),
    # Two GPUs, in seven minutes: the setting that a probe found, NCCL's default and custom all-reduce; the
    # plug-in's cost; firstlight.
    "pair-found": Wave(
        (
            Server("baseline-custom", "baseline", 31000, measuring=True),
            Server("eagle3-acc2.0-custom", "eagle3", 31000 + APART, 2.0, measuring=True),
            Server("eagle3-acc2.0-nccl-nop2p", "eagle3", 31000 + 2 * APART, 2.0, all_reduce="nccl-nop2p"),
            Server(f"eagle3-acc2.0-{BEST}", "eagle3", 31000 + 3 * APART, 2.0, all_reduce=BEST, wanted=False),
        ),
        tensor_parallel=2,
        concurrencies="1,8",
        rounds=2,
        toggled=(("baseline-custom", 1, 16), ("eagle3-acc2.0-custom", 1, 24)),
        first_light=("baseline-custom", "eagle3-acc2.0-custom"),
    ),
    # Two GPUs: what the choice of all-reduce does to a verify and a decode step in the real server.
    "pair-paths": Wave(
        _paths(),
        tensor_parallel=2,
        concurrencies="1,8",
        rounds=2,
        toggled=(("eagle3-acc2.0-custom", 1, 8),),
        first_light=("baseline-custom", "eagle3-acc2.0-custom"),
    ),
}  # fmt: skip


def make_models(folder: Path) -> None:
    """Write the target's and the drafter's folder: configuration, tokenizer, a token of weights."""
    common = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    target = {
        **common,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "intermediate_size": TARGET_INTERMEDIATE,
    }
    drafter = {
        **common,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": DRAFTER_INTERMEDIATE,
        "draft_vocab_size": VOCABULARY,
        "target_hidden_size": HIDDEN,
        "norm_output": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
    }
    for name, config in (("target", target), ("drafter", drafter)):
        where = folder / name
        where.mkdir(parents=True, exist_ok=True)
        (where / "config.json").write_text(json.dumps(config, indent=2))
        _write_placeholder_weights(where / "model.safetensors")
        (where / "generation_config.json").write_text('{"temperature": 0.0, "do_sample": false}')
    make_tokenizer(folder / "target")


def _write_placeholder_weights(path: Path) -> None:
    """One float: `--load-format dummy` fills the weights, but a model folder without weights is refused."""
    header = json.dumps({"placeholder": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def make_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer trained on the benchmark's prompts, filled up to the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ROOT / "deploy_kit" / "bench" / "data" / "prose-and-code.txt"
    tokenizer.train_from_iterator([texts.read_text(encoding="utf-8")], trainer)
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    for number in range(len(vocabulary), VOCABULARY):
        vocabulary[f"\u0120w{number}"] = number  # never encoded, always decodable
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                    "model_max_length": 4096, "chat_template": "{{ messages[-1]['content'] }}"})
    )  # fmt: skip


def make_configs(work: Path, models: Path) -> Path:
    """Write a configurations' folder: the project's own, plus this host and this model; return it."""
    folder = work / "configs"
    shutil.copytree(ROOT / "configs", folder, dirs_exist_ok=True)
    layer = HIDDEN * HEADS * 128 * 2 + HIDDEN * KV_HEADS * 128 * 2 + 3 * HIDDEN * TARGET_INTERMEDIATE
    weights = 2 * (LAYERS * layer + 2 * VOCABULARY * HIDDEN)
    (folder / "models" / f"{MODEL_NAME}.toml").write_text(
        f'name = "{MODEL_NAME}"\nserved_name = "{MODEL_NAME}"\n'
        'description = "Llama-like, a real model\'s width and depth, dummy weights"\n'
        f'architecture = "LlamaForCausalLM"\npath = "{models / "target"}"\nlayers = {LAYERS}\n'
        f"hidden_size = {HIDDEN}\nattention_heads = {HEADS}\nrouted_experts = 0\n"
        f"vocabulary_size = {VOCABULARY}\nelement_bytes = 2\nallreduces_per_forward = {2 * LAYERS}\n"
        f'shards = 1\nweights_bytes = {weights}\n\n[flags]\nload-format = "dummy"\ncontext-length = 4096\n'
        "max-total-tokens = 16384\nmax-running-requests = 32\nchunked-prefill-size = 2048\n\n"
        f'[drafters.eagle3]\npath = "{models / "drafter"}"\narchitecture = "LlamaForCausalLMEagle3"\n'
        'attention_backend = "triton"\n'
    )
    return folder


def make_host(work: Path, server: Server, memory_gib: float, gpus: int, best: Mapping[str, str]) -> Path:
    """Write the host's file for one server; the simulated accept length is part of the plan.

    `best`: NCCL's environment that a probe found fastest without peer access.
    """
    environment = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1", "HF_HUB_OFFLINE": "1"}
    if server.accept_length is not None:
        environment["SGLANG_SIMULATE_ACC_LEN"] = str(server.accept_length)
        environment["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"  # noqa: S105
    if server.measuring:
        environment["SGLANG_PLUGINS"] = "deploy_kit_telemetry,deploy_kit_measuring"
    path = server.all_reduce
    chosen = AllReduce(_NCCL, {**_NO_P2P, **best}) if path == BEST else ALL_REDUCES[path]
    flags: dict[str, object] = {
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "cuda-graph-backend-prefill": "disabled",
        "cuda-graph-max-bs-decode": 32,
        "sleep-on-idle": True,
        "mem-fraction-static": 0.9,
        "enforce-disable-flashinfer-allreduce-fusion": True,
        **(chosen.flags if gpus > 1 else {}),
    }
    file = work / f"host-{server.name}.toml"
    file.write_text(
        f'name = "{host_name(gpus)}"\ndescription = "{gpus} x NVIDIA H200 in a virtual machine"\n'
        f'accelerator = "cuda"\ngpus = {gpus}\ngpu_name = "NVIDIA H200"\ncapability = "9.0"\n'
        f"gpu_memory_gib = {memory_gib:.1f}\nnvlink = {json.dumps(gpus > 1)}\n"
        f"tensor_parallel = {gpus}\n\n[flags]\n"
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in flags.items())
        + "\n[environment]\n"
        + "".join(f'{name} = "{value}"\n' for name, value in environment.items())
        + "\n[nccl]\n"
        + "".join(f'{name} = "{value}"\n' for name, value in chosen.nccl.items())
    )
    return file


def host_name(gpus: int) -> str:
    """Return the name of the host with so many GPUs."""
    return "h200-single" if gpus == 1 else f"h200-x{gpus}"
