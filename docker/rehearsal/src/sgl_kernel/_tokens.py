"""Small index operators around a verify: the bonus token, the accepted slots, the shifted input of the next
drafts."""

import torch


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Given each request's accepted tokens (rows of `accept_stride`, the bonus token counted in
    `accept_lens`), write its last accepted token to `bonus_tokens`."""
    requests = accept_lens.numel()
    last = torch.arange(requests) * accept_stride + accept_lens.to(torch.int64) - 1
    bonus_tokens[:requests] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Given indices of accepted draft tokens with -1 in unused places, pack their KV slots to the front, in
    order."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted > -1].to(torch.int64)
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's segment of `input_ids` left by one and put its new token last, or at
    `select_index` (an index into the whole of `input_ids`)."""
    new_tokens = topk_index.flatten().tolist()
    selected = None if select_index is None else select_index.tolist()
    segments = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for request, (start, length) in enumerate(segments):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        place = start + length - 1 if selected is None else selected[request]
        input_ids[place] = new_tokens[request]
