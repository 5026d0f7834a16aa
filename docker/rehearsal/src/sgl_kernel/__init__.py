"""Stand-in (rehearsal only) for SGLang's compiled `sgl_kernel`: the CPU operators that no published wheel
carries.

Plain PyTorch, written from what each operator has to do at its call sites in SGLang 0.5.23; thirteen
operators, enough for plain decoding, EAGLE (chain and tree) and n-gram with the `intel_amx` attention
backend. Correct, not fast.

`convert_weight_packed` is left out on purpose: SGLang looks for it to decide whether the machine has the
packed AMX kernels, and without it every other layer takes SGLang's own PyTorch path.
"""

from sgl_kernel._attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel._cache_locations import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from sgl_kernel._tokens import fill_accept_out_cache_loc_cpu, fill_bonus_tokens_cpu, rotate_input_ids_cpu
from sgl_kernel._tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0+rehearsal.stand.in"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
