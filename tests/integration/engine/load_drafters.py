"""Loads drafters with SGLang's own code, in one process: `python load_drafters.py TARGET DRAFTER…`.

Prints a JSON line for each. The target's worker is made as the scheduler makes it, then each drafter's as
the EAGLE-3 worker makes it: config, class lookup, construction and loading are SGLang's. Only the path is
given anew, since one process has one published path.
"""

import json
import sys
from typing import Any


def main(target: str, drafters: list[str]) -> None:
    from engine_server import free_port
    from sglang.srt.distributed import bootstrap
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    speculation = [
        "--speculative-num-steps",
        "3",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "4",
    ]
    args = prepare_server_args(
        [
            "--model-path", target, "--device", "cpu", "--attention-backend", "intel_amx",
            "--context-length", "2048",
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", drafters[0], *speculation,
        ]
    )  # fmt: skip
    args.resolve_once()
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=0, gpu_id=0))

    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.tp_worker import TpModelWorker

    class DraftWorker(TpModelWorker):  # type: ignore[misc]
        path = ""

        def _init_model_config(self) -> None:
            self.model_config = ModelConfig.from_server_args(
                self.server_args,
                model_path=self.path,
                is_draft_model=True,
                context_length=self.context_length,
            )

    port = free_port()
    bootstrap.init_parallel_runtime(server_args=args, device="cpu", dist_port=port)
    bootstrap.init_layer_runtime(model_config=ModelConfig.from_server_args(args))
    worker = TpModelWorker(args, 0, port)
    context = worker.model_runner.model_config.context_len
    for drafter in drafters:
        DraftWorker.path = drafter
        result: dict[str, Any] = {"drafter": drafter}
        try:
            made = DraftWorker(args, 0, port, is_draft_worker=True, context_length=context, random_seed=1)
            model = made.model_runner.model
            hot = model.hot_token_id
            result |= {
                "class": type(model).__name__,
                "borrows_head": model.load_lm_head_from_target,
                "tied": model.lm_head is model.model.embed_tokens,
                "map": None if hot is None else hot.tolist(),
            }
        except Exception as error:  # noqa: BLE001  (whatever SGLang raises is the result)
            result["error"] = f"{type(error).__name__}: {error}"
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
