"""Attention over the slot table, for one new token a request (decode) and for several (extend, verify).

Both are registered as operators `torch.ops.sgl_kernel.*`, where SGLang's backend looks for them. All
arithmetic is in float32; outputs have the query's type. Grouped queries: query head h reads key-value head h
// (heads / kv heads).
"""

# The compiled operators' signatures are kept whole, unused parameters too.
# ruff: noqa: ARG001

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("sgl_kernel", "DEF")

_LIBRARY.define(
    "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale,"
    " float v_scale,"
    " Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token,"
    " Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn,"
    " int sliding_window_size, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_LIBRARY.define(
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, Tensor k_buffer,"
    " Tensor v_buffer, float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices,"
    " Tensor seq_lens,"
    " Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap,"
    " bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask,"
    " bool is_causal) -> ()"
)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    scale: float,
    logit_cap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Given query [tokens, heads, dim], keys [positions, kv heads, dim], values [positions, kv heads, value
    dim] and which positions each token sees [tokens, positions] (None: all), return [tokens, heads, value
    dim] in float32.

    `logit_cap` > 0 bounds the scores to ±cap by tanh; `sinks` [heads] is one more score a head that carries
    no value.
    """
    kv_heads = keys.shape[1]
    tokens, heads, dim = query.shape
    grouped = query.float().view(tokens, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("tgrd,pgd->grtp", grouped, keys.float()) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        extra = sinks.float().view(kv_heads, heads // kv_heads, 1, 1).expand(-1, -1, tokens, 1)
        weights = torch.softmax(torch.cat((scores, extra), dim=-1), dim=-1)[..., :-1]
    output = torch.einsum("grtp,pgv->tgrv", weights, values.float())
    return output.reshape(tokens, heads, values.shape[-1])


def _refuse_cross_attention(is_cross_attn: bool) -> None:
    if is_cross_attn:
        raise NotImplementedError("cross attention is not part of the rehearsal stand-in for sgl_kernel")


def _decode_attention(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Store each request's new key and value (where given) at slot `loc[i]`, then attend with its one query
    over its whole sequence: columns [0, seq_lens[i]) of its row, or the last `sliding_window_size` of them
    where that is > 0.

    `attn_logits` is the compiled operator's scratch space and stays untouched.
    """
    _refuse_cross_attention(is_cross_attn)
    if key is not None and value is not None:
        slots = loc.to(torch.int64)
        k_buffer[slots] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slots] = value.reshape(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for request, (row, length) in enumerate(rows):
        start = max(0, length - sliding_window_size) if sliding_window_size > 0 else 0
        slots = req_to_token[row, start:length].to(torch.int64)
        output[request] = _attend(
            query[request : request + 1],
            k_buffer[slots].float() * k_scale,
            v_buffer[slots].float() * v_scale,
            None,
            sm_scale,
            logit_cap,
            sinks,
        )[0].to(output.dtype)


def _visible_positions(
    prefix: int, extend: int, mask: Tensor | None, is_causal: bool, sliding_window_size: int
) -> Tensor:
    """Return which of the `prefix + extend` positions each of the `extend` new tokens sees [extend, prefix +
    extend]."""
    visible = torch.ones(extend, prefix + extend, dtype=torch.bool)
    if mask is not None:
        visible[:, prefix:] = mask
    elif is_causal:
        visible[:, prefix:] = torch.ones(extend, extend, dtype=torch.bool).tril()
    if sliding_window_size > 0:
        own = torch.arange(prefix, prefix + extend)[:, None]
        visible &= torch.arange(prefix + extend) > own - sliding_window_size
    return visible


def _extend_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attend with each request's last `extend_seq_lens[i]` tokens over its prefix (from the buffers) and
    those tokens' own keys and values (from `key`, `value`; from the buffers where they are None).

    Without a tree mask a new token sees the new tokens up to itself (all of them if not `is_causal`); with
    one (flat [requests, n, n], n new tokens a request) it sees those that its mask row names. The prefix is
    always seen, within the sliding window where that is > 0.
    """
    _refuse_cross_attention(is_cross_attn)
    masked = 0
    requests = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    )
    for row, length, extend, first in requests:
        if extend == 0:
            continue
        prefix = length - extend
        if key is None or value is None:
            slots = req_to_token[row, :length].to(torch.int64)
            keys, values = k_buffer[slots].float() * k_scale, v_buffer[slots].float() * v_scale
        else:
            keys, values = key[first : first + extend].float(), value[first : first + extend].float()
            if prefix > 0:
                slots = req_to_token[row, :prefix].to(torch.int64)
                keys = torch.cat((k_buffer[slots].float() * k_scale, keys))
                values = torch.cat((v_buffer[slots].float() * v_scale, values))
        mask = None
        if tree_mask is not None:
            mask = tree_mask[masked : masked + extend * extend].view(extend, extend).to(torch.bool)
            masked += extend * extend
        visible = _visible_positions(prefix, extend, mask, is_causal, sliding_window_size)
        output[first : first + extend] = _attend(
            query[first : first + extend], keys, values, visible, sm_scale, logit_cap, sinks
        ).to(output.dtype)


_LIBRARY.impl("decode_attention_cpu", _decode_attention, "CPU")
_LIBRARY.impl("extend_attention_cpu", _extend_attention, "CPU")

decode_attention_cpu = torch.ops.sgl_kernel.decode_attention_cpu
extend_attention_cpu = torch.ops.sgl_kernel.extend_attention_cpu
