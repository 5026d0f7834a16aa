"""SGLang plug-in (entry point `deploy_kit_rehearsal` in `sglang.srt.plugins`): what the CPU rehearsal needs
of SGLang.

Two hooks. `--attention-backend intel_amx` is kept on CPUs without AMX: SGLang replaces it there by
`torch_native`, which refuses EAGLE; the stand-in's attention operators need no AMX. And SGLang's n-gram
module is loaded from the file compiled by `deploy-kit-rehearsal ngram build`, where there is one.
"""

import logging
import os
from typing import Any

from deploy_kit_rehearsal import ngram

logger = logging.getLogger(__name__)

ATTENTION_FALLBACK = "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks"


def on_cpu_engine() -> bool:
    """Return whether this process runs SGLang's CPU engine (`SGLANG_USE_CPU_ENGINE=1`, as SGLang itself reads
    it)."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


def keep_attention_backend(_view: Any) -> dict[str, Any]:
    """Stand for SGLang's pass of that name: change nothing, whatever the machine's CPU."""
    return {}


def register() -> None:
    """Called by SGLang in each of its processes. Inert, and says so, where the engine is not the CPU one."""
    if not on_cpu_engine():
        logger.warning(
            "deploy_kit_rehearsal: not the CPU engine (SGLANG_USE_CPU_ENGINE is not 1): nothing changed"
        )
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(ATTENTION_FALLBACK, keep_attention_backend, HookType.REPLACE)
    if ngram.built_library().is_file():
        HookRegistry.register(ngram.LOAD, ngram.load_built_module, HookType.AROUND)
    logger.warning(
        "deploy_kit_rehearsal: REHEARSAL on the CPU engine; no number from here says anything about a GPU"
    )
