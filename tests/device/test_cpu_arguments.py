"""Which CPU tensors an op on the device takes: what CUDA takes, and an error that names both devices for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import torch
x = torch.zeros(4, 3, device="sim")
rows, chosen = torch.tensor([0, 2]), torch.tensor([0, 2], device="sim")

def fused_adam(step, lr=0.1):
    p, g, m, v = (torch.ones(3, device="sim") for _ in range(4))
    torch._fused_adam_([p], [g], [m], [v], [], [step], lr=lr, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
                       amsgrad=False, maximize=False)

def unscale(inverse):
    found = torch.zeros(1, device="sim")
    torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(3, device="sim")], found, inverse)

refused = {
    "values of index_put": lambda: x.__setitem__(rows, torch.ones(2, 3)),
    "values of index_put, indices on the device": lambda: x.__setitem__(chosen, torch.ones(2, 3)),
    "values of index_put with accumulate": lambda: x.index_put_((chosen,), torch.ones(2, 3), accumulate=True),
    "values of a mask": lambda: x.__setitem__(x == 0, torch.ones(12)),
    "steps of a fused optimizer": lambda: fused_adam(torch.tensor(1.0)),
    "scale of found_inf": lambda: unscale(torch.ones(())),
    "offsets of embedding_bag": lambda: torch.nn.functional.embedding_bag(chosen, x, torch.tensor([0, 1])),
}
accepted = {
    "indices": lambda: x[rows],
    "indices of index_put": lambda: x.__setitem__(rows, torch.ones(2, 3, device="sim")),
    "a number": lambda: x.__setitem__(chosen, torch.tensor(5.0)),
    "a row": lambda: x.__setitem__(1, torch.ones(3)),
    "a learning rate": lambda: fused_adam(torch.tensor(1.0, device="sim"), torch.tensor(0.1)),
    "steps on the device": lambda: fused_adam(torch.tensor(1.0, device="sim")),
    "scale on the device": lambda: unscale(torch.ones((), device="sim")),
    "lengths": lambda: torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4, device="sim"), torch.tensor([3, 2])),
}
for attempt in ("cold", "warm"):
    for name, use in accepted.items():
        use()
    for name, use in refused.items():
        try:
            use()
        except RuntimeError as error:
            assert "sim:0" in str(error) and "cpu" in str(error), (name, error)
        else:
            raise AssertionError(f"{attempt}: {name}: a CPU tensor was taken")
x[chosen] = torch.tensor(5.0)
assert x.cpu()[rows].eq(5).all()
"""


@pytest.mark.parametrize("mode", ["kernels", "library"])
def test_cpu_tensors_are_taken_where_cuda_takes_them(run_python: Callable[..., Any], mode: str) -> None:
    run_python(PROGRAM, env={"BRINGUP_SIM": f"mode={mode}"})
