"""Builds the folder of rehearsal models: a target, its MLA twin, and drafters of known accept length."""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy_kit_rehearsal import __version__
from deploy_kit_rehearsal.expect import MANIFEST, circle_accept_length, never_drafted_for
from deploy_kit_rehearsal.models import deepseek_target, eagle3_drafter, llama_target
from deploy_kit_rehearsal.tensors import Weights, safetensors_bytes
from deploy_kit_rehearsal.vocabulary import Vocabulary, build_vocabulary, tokenizer_files

# Accept lengths with 3 steps, top-k 1, 4 draft tokens; the folder of each is named after it.
ACCEPT_LENGTHS = (1.0, 2.0, 2.75, 4.0)
# This one shares the target's vocabulary; the others have a pruned one with d2t.
ACCEPT_LENGTH_WITHOUT_MAP = 2.0
SISTER_ACCEPT_LENGTH = 1.5
STEPS = (1, 2, 3, 4, 5, 7)


class NotOursError(Exception):
    """The folder holds something that this builder did not make."""


def _write(folder: Path, config: dict[str, Any], weights: Weights, manifest: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights))
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _write_target(
    folder: Path, what: str, model: tuple[dict[str, Any], Weights], vocabulary: Vocabulary
) -> None:
    config, weights = model
    manifest = {
        "what": what,
        "made_by": f"deploy-kit-rehearsal {__version__}",
        "rehearsal": True,
        "kind": "target",
        "speech": asdict(vocabulary.speech),
    }
    _write(folder, config, weights, manifest)
    for name, text in tokenizer_files(vocabulary, config["max_position_embeddings"]).items():
        (folder / name).write_text(text)
    # Greedy where a client does not ask for a temperature: then its text is the predicted one.
    generation = {
        "temperature": 0.0,
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def _write_drafter(
    folder: Path,
    what: str,
    model: tuple[dict[str, Any], Weights],
    vocabulary: Vocabulary,
    never_drafted: frozenset[int],
) -> None:
    circle = vocabulary.speech.circle
    lengths = {str(steps): round(circle_accept_length(circle, never_drafted, steps), 6) for steps in STEPS}
    manifest = {
        "what": what,
        "made_by": f"deploy-kit-rehearsal {__version__}",
        "rehearsal": True,
        "kind": "drafter",
        "predicted_accept_length": lengths["3"],
        "predicted_accept_length_by_steps": lengths,
        "never_drafted": sorted(never_drafted),
    }
    _write(folder, *model, manifest)


def build_into(folder: Path) -> None:
    """Write all models below the (empty) folder. The bytes depend on this package's version only."""
    vocabulary = build_vocabulary()
    circle = vocabulary.speech.circle
    _write_target(
        folder / "target",
        "Rehearsal target (Llama-like): greedy text is known beforehand, the model knows nothing",
        llama_target(vocabulary),
        vocabulary,
    )
    _write_target(
        folder / "target-mla",
        "Rehearsal target with DeepSeek-V3's and Kimi-K2.5's attention and experts: says what the other says",
        deepseek_target(vocabulary),
        vocabulary,
    )
    for length in ACCEPT_LENGTHS:
        never_drafted = never_drafted_for(circle, length)
        _write_drafter(
            folder / "drafters" / f"accept-{length:.2f}",
            f"Rehearsal EAGLE-3 drafter built for accept length {length:.2f} (3 steps, 4 draft tokens)",
            eagle3_drafter(vocabulary, never_drafted, pruned=length != ACCEPT_LENGTH_WITHOUT_MAP),
            vocabulary,
            never_drafted,
        )
    never_drafted = never_drafted_for(circle, SISTER_ACCEPT_LENGTH)
    _write_drafter(
        folder / "drafters" / "sister",
        "Rehearsal EAGLE-3 drafter in the sister model's place: shapes right, vocabulary map mostly wrong",
        eagle3_drafter(vocabulary, never_drafted, wrong_map=True),
        vocabulary,
        never_drafted,
    )


def _same_tree(left: Path, right: Path) -> bool:
    def files(root: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    return files(left) == files(right)


def build_models(folder: Path) -> bool:
    """Make the models at `folder`, whole or not at all; return False where they were there already, byte for
    byte.

    An older set made here is replaced. Raises NotOursError where the folder holds anything else.
    """
    existing = folder.is_dir() and any(folder.iterdir())
    if (folder.exists() and not folder.is_dir()) or (
        existing and not (folder / "target" / MANIFEST).is_file()
    ):
        raise NotOursError(f"{folder} is not empty and was not made by deploy-kit-rehearsal")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        made = scratch / "models"
        made.mkdir()
        build_into(made)
        if existing and _same_tree(made, folder):
            return False
        if folder.exists():
            folder.rename(scratch / "replaced")
        made.rename(folder)
        return True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
