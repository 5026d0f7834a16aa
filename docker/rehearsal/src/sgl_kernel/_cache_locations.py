"""Which slots of the KV cache a request's tokens live in: reading, writing and copying slots.

`req_to_token` is a table [requests, pool_len]: row r, column p holds the KV slot of request r's token at
position p.
"""

# The compiled operators' signatures are kept whole, unused parameters too.
# ruff: noqa: ARG001

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Given newly allocated slots, laid end to end request by request, write request i's share of them into
    columns [start_offset[i], end_offset[i]) of its row."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The reverse: read columns [start_offset[i], end_offset[i]) of each request's row into `out_cache_loc`,
    end to end."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the `topk * num_steps` slots that follow each request's sequence: where its draft tokens are to be
    stored."""
    width = topk * num_steps
    columns = seq_lens.to(torch.int64)[:, None] + torch.arange(width)
    slots = req_to_token[req_pool_indices.to(torch.int64)[:, None], columns]
    out_cache_loc[: slots.numel()] = slots.flatten().to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Given `topk` branches a request, return one table row a branch [requests * topk, pool_len]: the
    request's own sequence, then that branch's `num_steps` draft slots (which the request's row holds branch
    after branch)."""
    table = req_to_token[req_pool_indices.to(torch.int64)].repeat_interleave(topk, dim=0)
    lengths = seq_lens.to(torch.int64).repeat_interleave(topk)[:, None]
    branch = torch.arange(topk).repeat(seq_lens.numel())[:, None]
    steps = torch.arange(num_steps)
    # Columns past the row's end belong to requests at the pool's limit: their drafts are never read.
    source = (lengths + branch * num_steps + steps).clamp_(max=pool_len - 1)
    target = (lengths + steps).clamp_(max=pool_len - 1)
    table.scatter_(1, target, table.gather(1, source))
    return table


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slot `src_loc[j]` to slot `tgt_loc[j]` in every buffer (address data_ptrs[i], strides[i] bytes a
    slot).

    All sources are read before any target is written, so the two may overlap.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        contents = [ctypes.string_at(address + slot * stride, stride) for slot in sources]
        for slot, content in zip(targets, contents, strict=True):
            ctypes.memmove(address + slot * stride, content, stride)
