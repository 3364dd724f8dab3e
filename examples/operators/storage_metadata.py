"""Facts about a storage that a chip needs and PyTorch has no place for: layout, quantisation, where it came from.

    python examples/operators/storage_metadata.py

The metadata is bytes; what they mean is up to you (here: JSON). They belong to the storage, so every view of it has
them, and they go along with copies of a whole storage, torch.save, pickle and deepcopy.
"""

import copy
import io
import json
import pickle

import torch

import bringup
from bringup import _C

DEVICE = bringup.device().type


def set_layout(tensor: torch.Tensor, layout: dict) -> None:
    _C.set_storage_metadata(tensor.untyped_storage(), json.dumps(layout).encode())


def layout_of(tensor: torch.Tensor) -> dict | None:
    metadata = _C.storage_metadata(tensor.untyped_storage())
    return None if metadata is None else json.loads(metadata)


def quantise(x: torch.Tensor) -> torch.Tensor:
    """int8 values, whose scale travels with their storage."""
    scale = x.abs().max().item() / 127
    values = (x / scale).round().to(torch.int8)
    set_layout(values, {"quantised": "symmetric", "scale": scale})
    return values


def dequantise(values: torch.Tensor) -> torch.Tensor:
    layout = layout_of(values)
    if layout is None:
        raise ValueError("dequantise: this storage has no metadata, quantise() makes some that has")
    return values * layout["scale"]


def saved_and_loaded(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def main() -> None:
    x = torch.linspace(-1, 1, 9, device=DEVICE)
    values = quantise(x)
    for how, again in {
        "view": values[2:].view(7, 1),
        "clone": values.clone(),
        "copy_": torch.empty_like(values).copy_(values),
        "torch.save": saved_and_loaded(values),
        "pickle": pickle.loads(pickle.dumps(values)),
        "deepcopy": copy.deepcopy(values),
    }.items():
        print(f"{how:10}", layout_of(again), dequantise(again).flatten().cpu().tolist()[-1])
    # A new storage has none: what an op computes is new data, and only you know whether the facts still hold.
    print("values + 0", layout_of(values + 0))


if __name__ == "__main__":
    main()
