"""What a result of a compiled graph says about its memory: lazy conjugates and negatives, and strides.

Kernels read memory as it lies, and a result says what it is a view of.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

RESULTS: dict[str, tuple[Function, torch.dtype]] = {
    "a conjugate": (lambda a: torch.complex(a, a + 1).conj(), torch.float32),
    "a transposed conjugate": (lambda a: torch.complex(a, a + 1).conj().t(), torch.float32),
    "part of a conjugate": (lambda a: torch.complex(a, a + 1).conj()[1:, ::2], torch.float64),
    "a conjugate of a conjugate": (lambda a: (a * 2).conj().t().conj(), torch.complex64),
    "a negative": (lambda a: (a * 2).conj().imag, torch.complex64),
    "part of a negative": (lambda a: (a * 2).conj().imag[1:], torch.complex128),
    "the inverse transform of real numbers": (torch.fft.ifft, torch.float32),
    "half of it": (torch.fft.ihfft, torch.float64),
    "eigenvalues": (lambda a: torch.linalg.eigvals(a[:, :4]).sum(), torch.float32),
    "an argument's own": (lambda a: a.conj(), torch.complex64),
    "a product": (lambda a: a.mH @ a, torch.complex64),
}


def numbers(dtype: torch.dtype) -> Tensor:
    return torch.randn(4, 6, dtype=dtype, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    function, dtype = RESULTS[name]
    x = numbers(dtype)
    expected, found = function(x), torch.compile(function, backend="bringup")(x.to("sim"))
    assert (found.is_conj(), found.is_neg(), found.stride()) == (
        expected.is_conj(),
        expected.is_neg(),
        expected.stride(),
    )
    torch.testing.assert_close(found.cpu(), expected)
    changed = expected.resolve_conj().resolve_neg() + 1
    torch.testing.assert_close((found + 1).cpu(), changed)  # and a kernel reads it as what it is


ARGUMENTS: dict[str, Function] = {
    "a conjugate": torch.conj,
    "part of a conjugate": lambda x: x.conj()[:, ::2],
    "an expanded conjugate": lambda x: x[:, :1].conj().expand(4, 6),
    "a negative": lambda x: x.conj().imag,
    "part of a negative": lambda x: x.conj().imag[1:],
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("place", ["sim", "cpu"])
def test_arguments(name: str, place: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2 + 1, (x.real if x.is_complex() else x).sum(0)

    made = ARGUMENTS[name](numbers(torch.complex64).to(place))
    run = torch.compile(function, backend="bringup", options={"device": "sim"})
    for found, expected in zip(run(made), function(ARGUMENTS[name](numbers(torch.complex64)))):
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_incoming_gradients(name: str) -> None:
    """The backward graph is traced with plain gradients, and nobody resolves those that come."""
    incoming = ARGUMENTS[name](numbers(torch.complex64))

    def function(x: Tensor) -> Tensor:
        return (x * x).sin() * x

    grads = []
    for device in ("cpu", "sim"):
        x = numbers(incoming.dtype)[: incoming.shape[0], : incoming.shape[1]].to(device).requires_grad_()
        run = function if device == "cpu" else torch.compile(function, backend="bringup")
        run(x).backward(ARGUMENTS[name](numbers(torch.complex64).to(device)))
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


def test_losses_of_complex_results() -> None:
    for loss in (lambda y: (y.conj() * (1 + 2j)).sum().real, lambda y: (y.imag * 3).sum()):
        grads = []
        for device in ("cpu", "sim"):
            x = numbers(torch.complex64).to(device).requires_grad_()
            run = torch.compile(lambda t: (t * t).sin() * t, backend="bringup" if device == "sim" else "eager")
            loss(run(x)).backward()
            grads.append(x.grad.cpu())
        torch.testing.assert_close(grads[1], grads[0])


LAYOUTS: dict[str, Callable[[str], Tensor]] = {
    "unpooled, channels last": lambda device: _unpooled(torch.channels_last, device),
    "unpooled": lambda device: _unpooled(torch.contiguous_format, device),
    "static places": lambda device: _places((3, 4, 5), 10, device),
    "more places than there are": lambda device: _places((3, 4), 40, device),
    "no places": lambda device: _places((3, 4), 0, device),
    "places in nothing": lambda device: _places((0, 4), 3, device),
    "places of a number": lambda device: _places((), 3, device),
}


def _unpooled(format: torch.memory_format, device: str) -> Tensor:
    x = torch.arange(144.0).sin().view(2, 2, 6, 6).contiguous(memory_format=format).to(device)
    values, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    run = _on(device, lambda a, b: torch.nn.functional.max_unpool2d(a, b, 2))
    return run(values, places)


def _places(shape: tuple[int, ...], size: int, device: str) -> Tensor:
    x = (torch.arange(float(torch.Size(shape).numel())).sin() + 1).round().view(shape).to(device)
    return _on(device, lambda a: torch.nonzero_static(a, size=size, fill_value=-7))(x)


def _on(device: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return function if device == "cpu" else torch.compile(function, backend="bringup")


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_that_fake_kernels_get_wrong(name: str) -> None:
    expected, found = LAYOUTS[name]("cpu"), LAYOUTS[name]("sim")
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)
