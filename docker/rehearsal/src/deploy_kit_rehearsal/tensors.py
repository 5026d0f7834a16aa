"""Weights as arrays with the same bytes on every machine, and their safetensors files."""

import hashlib

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.generic]]


def arbitrary(name: str, *shape: int, scale: float) -> NDArray[np.float32]:
    """Return arbitrary values in [-scale, scale): hash bits of the name, whatever the versions."""
    count = int(np.prod(shape))
    drawn = np.frombuffer(hashlib.shake_256(name.encode()).digest(count), dtype=np.int8)
    return (drawn.astype(np.float32) / 128.0 * scale).reshape(shape)


def signs(name: str, rows: int, columns: int) -> NDArray[np.float32]:
    """Return rows of arbitrary signs, each of length 1."""
    bits = np.unpackbits(
        np.frombuffer(hashlib.shake_256(name.encode()).digest(rows * columns // 8), dtype=np.uint8)
    )
    return (bits.astype(np.float32).reshape(rows, columns) * 2 - 1) / np.float32(np.sqrt(columns))


def safetensors_bytes(weights: Weights) -> bytes:
    """Return a safetensors file of the weights: float32 as bfloat16, int64 and bool as they are."""
    import torch
    from safetensors.torch import save

    tensors = {}
    for name, values in sorted(weights.items()):
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        tensors[name] = tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor
    return bytes(save(tensors, metadata={"format": "pt"}))
