"""SGLang plug-in for these tests: lets the MLA drafter class bind its embedding on the CPU backend.

Its `set_embed` waits for the GPU (`torch.cuda.synchronize`), which PyTorch without CUDA refuses; the Llama
class asks the platform instead. Here that wait is nothing. Everything else is SGLang's own code.
"""

import os
from pathlib import Path

NAME = "mla_drafter_on_cpu"


def register() -> None:
    """Called by SGLang in each of its processes."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *_: None


def environment(folder: Path) -> dict[str, str]:
    """Make the plug-in known in `folder` (it is not installed); return what a server's environment needs."""
    metadata = folder / f"{NAME}-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{NAME} = {NAME}:register\n")
    paths = [str(folder), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "SGLANG_PLUGINS": f"deploy_kit_rehearsal,{NAME}"}
