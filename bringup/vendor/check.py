"""A test for every entry: its examples on the device against the CPU, in several layouts, in every form, with gradient.

@pytest.mark.parametrize("case", cases("chip.py"), ids=str)
def test_entry(case):
    case.run()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.vendor.bound import Bound
    from bringup.vendor.custom import CustomOp

#: How the tensors of an example lie in memory; every one must give right numbers, the first by the entry itself.
LAYOUTS = ("plain", "transposed", "strided")


@dataclass(frozen=True)
class Case:
    """One example of an entry in one dtype."""

    bound: Bound
    custom: CustomOp | None
    device: str
    dtype: str
    number: int

    def __str__(self) -> str:
        return f"entry {self.bound.entry.number} {self.bound.op} {self.dtype} example {self.number + 1}"

    def run(self) -> None:
        """Compares; an AssertionError says what differs."""
        import torch

        torch.manual_seed(self.number)
        for layout in LAYOUTS:
            with torch.no_grad():
                _compare_forms(self, self.inputs(layout), layout)
        differentiable = self.custom is not None and self.custom.backward and self.custom.reference
        if differentiable and getattr(torch, self.dtype).is_floating_point:
            _compare_gradients(self, self.inputs("plain"))
        _check_chosen(self)

    def inputs(self, layout: str) -> list[Any]:
        """The arguments of the example, on the CPU, in the order of the schema."""
        example = self.bound.entry.examples[self.number]
        found = []
        for argument in self.bound.arguments:
            if argument.kind == "tensor" and argument.name in example:
                dtype = self.bound.entry.argument_dtypes.get(argument.name, self.dtype)
                found.append(_tensor(example[argument.name], dtype, layout))
            elif argument.name in example:
                found.append(example[argument.name])
            elif argument.has_default or argument.optional:
                found.append(argument.default)
            else:
                raise AssertionError(f"{self}: the example does not say what {argument.name} is")
        return found


def cases(driver: str = "") -> list[Case]:
    """The tests of the active drivers' tables, or of one driver's; activates the driver if none is active."""
    import bringup
    from bringup.driver import in_use

    if driver and not in_use.active_drivers():
        bringup.activate(driver)  # before torch is imported, which would activate the default driver
    import torch  # noqa: F401  (activates)

    from bringup.vendor.install import active_tables

    tables = active_tables()
    found = []
    for active in in_use.active_drivers():
        if driver and driver != active.name and len(in_use.active_drivers()) > 1:
            continue
        by_op = {op.bound.op: op for op in tables.ops}
        for bound in tables.entries.get(active.name, ()):
            for dtype in bound.entry.dtypes:
                for number in range(len(bound.entry.examples)):
                    device = f"{in_use.device_type()}:{active.first}"
                    found.append(Case(bound, by_op.get(bound.op), device, dtype, number))
    return found


def untested(entries: Sequence[Bound]) -> list[Bound]:
    """Entries without an example."""
    return [bound for bound in entries if not bound.entry.examples]


def _tensor(shape: Sequence[int], dtype: str, layout: str) -> Any:
    import torch

    kind = getattr(torch, dtype)

    def fresh(sizes: Sequence[int]) -> Any:
        return torch.randn(sizes).to(kind) if kind.is_floating_point else torch.randint(0, 2, sizes).to(kind)

    if layout == "transposed" and len(shape) >= 2:
        return fresh([*shape[:-2], shape[-1], shape[-2]]).transpose(-1, -2)
    if layout == "strided" and shape:
        return fresh([*shape[:-1], 2 * shape[-1]])[..., ::2]
    return fresh(shape)


def _on(value: Any, device: str) -> Any:
    """On the device, in the layout it had on the CPU."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    room = [1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))] if value.numel() else [0]
    made = torch.empty(room, dtype=value.dtype, device=device).as_strided(value.shape, value.stride())
    return made.copy_(value)


def _wide(value: Any) -> Any:
    import torch

    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _split(bound: Bound, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    given = list(zip(bound.arguments, values))
    return [v for a, v in given if not a.keyword], {a.name: v for a, v in given if a.keyword}


def _op(name: str) -> Any:
    from bringup.vendor.op_lookup import find_overload

    return find_overload(name)


def _forms(case: Case) -> Iterator[tuple[str, Callable[..., Any]]]:
    from bringup.vendor.op_lookup import in_place_form, out_form

    op = _op(case.bound.op)
    yield "functional", op
    out, in_place = out_form(op), in_place_form(op)
    if out is not None and len(case.bound.outs) == 1:
        name = next(a.name for a in out._schema.arguments if a.is_out)
        yield "out=", lambda *args, **kwargs: out(*args, **kwargs, **{name: _empty_like_result(op, args, kwargs)})
    if in_place is not None:
        yield "in-place", lambda first, *args, **kwargs: in_place(first.clone(), *args, **kwargs)


def _empty_like_result(op: Any, args: Any, kwargs: Any) -> Any:
    import torch

    result = op(*args, **kwargs)
    return torch.empty((0,), dtype=result.dtype, device=result.device)


def _compare_forms(case: Case, inputs: Sequence[Any], layout: str) -> None:
    args, kwargs = _split(case.bound, [_wide(value) for value in inputs])
    function = case.custom.reference if case.custom is not None else _op(case.bound.op)
    expected = function(*args, **kwargs) if function is not None else None
    there, there_kwargs = _split(case.bound, [_on(value, case.device) for value in inputs])
    first = None
    for form, run in _forms(case):
        if form == "in-place" and first is not None and there[0].shape != first.shape:
            continue
        found = run(*there, **there_kwargs)
        first = found if first is None else first
        goal = expected if expected is not None else first  # without a reference: the forms agree
        for actual, wanted in zip(_listed(found), _listed(goal)):
            close = wanted.to("cpu", actual.dtype) if wanted.is_floating_point() else wanted.cpu()
            _assert_close(actual.cpu(), close, f"{case}, {form}, {layout}")


def _assert_close(actual: Any, wanted: Any, what: str) -> None:
    import torch

    torch.testing.assert_close(actual, wanted, msg=lambda text: f"{what}: {text}")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _compare_gradients(case: Case, inputs: Sequence[Any]) -> None:
    import torch

    assert case.custom is not None
    assert case.custom.reference is not None

    def gradients(function: Callable[..., Any], values: list[Any]) -> list[Any]:
        floats = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
        for value in floats:
            value.requires_grad_()
        args, kwargs = _split(case.bound, values)
        outs = _listed(function(*args, **kwargs))
        weights = [torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape) for out in outs]
        seeds = [weight.to(out.device, out.dtype) for weight, out in zip(weights, outs)]
        return list(torch.autograd.grad(outs, floats, seeds, allow_unused=True))

    expected = gradients(case.custom.reference, [_wide(value) for value in inputs])
    actual = gradients(_op(case.bound.op), [_on(value, case.device) for value in inputs])
    for n, (found, wanted) in enumerate(zip(actual, expected)):
        assert (found is None) == (wanted is None), f"{case}: gradient {n} is {'missing' if found is None else 'extra'}"
        if found is not None:
            _assert_close(found.cpu(), wanted.to(found.dtype), f"{case}: gradient {n}")


def _check_chosen(case: Case) -> None:
    from bringup.vendor.routing import chosen

    used = chosen[str(case.bound.entry.path), case.bound.entry.number, case.dtype]
    assert used, f"{case}: the entry was not used for its own example: see dtypes, layouts and when"
