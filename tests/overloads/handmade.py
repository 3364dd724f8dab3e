"""Arguments for private ops that check nothing: a draw from the schema means nothing to the CPU's kernel either."""

from __future__ import annotations

from typing import Any

import torch

from tests.overloads.calls import OverloadCall


def handmade() -> dict[str, list[OverloadCall]]:
    """Returns calls by overload; siblings borrow from them as from recorded ones."""
    v, g = torch.rand(2, 3) + 0.5, torch.rand(2, 1) + 0.5
    norms = v.norm(dim=1, keepdim=True)
    words, owners, sizes = torch.tensor([0, 1, 1, 4]), torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2])
    none = torch.empty(0, dtype=torch.int64)
    bag = {"indices": words, "offset2bag": owners, "bag_size": sizes, "maximum_indices": none, "num_weights": 5}
    calls: dict[str, dict[str, Any]] = {
        "aten::_weight_norm": {"v": v, "g": g},
        "aten::_weight_norm_interface": {"v": v, "g": g},
        "aten::_weight_norm_interface_backward": {
            "grad_w": torch.rand(2, 3), "saved_v": v, "saved_g": g, "saved_norms": norms, "dim": 0,
        },
        "aten::_compute_linear_combination": {"input": torch.rand(3, 4), "coefficients": torch.rand(2, 3)},
        "aten::_embedding_bag_dense_backward": {
            "grad": torch.rand(2, 3), **bag, "scale_grad_by_freq": False, "mode": 0, "per_sample_weights": None,
        },
        "aten::_embedding_bag_forward_only": {
            "weight": torch.rand(5, 3), "indices": words, "offsets": torch.tensor([0, 2]),
        },
        "aten::kaiser_window.beta": {"window_length": 9, "periodic": False, "beta": 14.0},
    }  # fmt: skip
    return {name: [OverloadCall(name, arguments)] for name, arguments in calls.items()}
