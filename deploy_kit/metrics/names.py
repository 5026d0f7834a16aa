"""SGLang's metric names and labels, as they are now and as they have been."""

from __future__ import annotations

# Families that are not the engine's although they begin like it: the router's own metrics.
ROUTER_PREFIXES = ("sglang_router_", "sglang:router_", "smg_", "sgl_router_")
# The engine writes `sglang:`; `sglang_` comes from gateways that aggregate engines and from relabelling.
PREFIXES = ("sglang:", "sglang_")

# Old or other name → the name used here (without prefix).
ALIASES = {
    "num_running_req": "num_running_reqs",
    "num_waiting_reqs": "num_queue_reqs",
    "num_queue_req": "num_queue_reqs",
    "generation_throughput": "gen_throughput",
    "time_per_output_token_seconds": "inter_token_latency_seconds",
    "spec_accepted_length": "spec_accept_length",
    "avg_spec_accept_length": "spec_accept_length",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "spec_verify_calls": "spec_verify_calls_total",
    "forward_execution_seconds": "forward_execution_seconds_total",
    "cuda_graph_passes": "cuda_graph_passes_total",
}

# Names that no other engine uses: they tell that a text without prefix is SGLang's.
DISTINCTIVE = frozenset(
    {"num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput",
     "spec_accept_length", "max_total_num_tokens", "cache_hit_rate"}
)  # fmt: skip

# Labels that tell copies of the same measurement apart: every rank reports the same batch.
REPLICA_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "cp_rank", "attn_cp_rank", "attn_tp_rank",
                  "moe_dp_rank", "pid")  # fmt: skip
# Labels of parts of a total, where the total is the series with an empty value.
PART_LABELS = ("priority",)
MODEL_LABELS = ("model_name", "name", "model")
# Labels by which a gateway or a Prometheus tells engines apart.
WORKER_LABELS = ("worker_addr", "worker", "worker_url", "instance", "url", "backend")
