"""C functions of a chip's library behind ops, which the core calls itself: what ``Driver.library_op`` gives.

The driver is asked when a signature is met for the first time. What it gives is kept in the launch plan, so a call that
comes again costs what the launch of a kernel costs: no Python runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bringup import _C
from bringup.compile.kernels import ForeignKernel
from bringup.driver import CallSpec, Driver, LibraryOp, NumberArgument, TensorArgument, TensorSpec
from bringup.ir.dtypes import float64, uint8
from bringup.ir.kernel import ScalarParam
from bringup.lowering.call import Call, Launch, Number, Tensor
from bringup.lowering.registry import Lowering
from bringup.lowering.symbolic import index_of
from bringup.vendor.op_lookup import find_overload


def with_library_ops(
    lowerings: Mapping[str, Lowering], drivers: Iterable[Driver], driver_of: Callable[[int], Driver]
) -> dict[str, Lowering]:
    """The lowerings, where those of ``library_ops`` of a driver ask that driver first on its devices."""
    asked: dict[str, Lowering] = {}
    for driver in drivers:
        for op in driver.library_ops if driver.offers("library_op") else ():
            if op not in lowerings:
                raise ValueError(
                    f"driver '{driver.name}': library_ops: {op!r} is not an op that bringup has a kernel for; "
                    "put other ops into `ops` or an op table"
                )
            asked[op] = _asking(op, lowerings[op], driver_of)
    return {**lowerings, **asked}


def _asking(op: str, second: Lowering, driver_of: Callable[[int], Driver]) -> Lowering:
    names = [argument.name for argument in find_overload(op)._schema.arguments]

    def lower(call: Call, *arguments: Any) -> None:
        driver = driver_of(call.device)
        if op in driver.library_ops and driver.offers("library_op"):
            tensors: list[Tensor] = []
            numbers: list[Number] = []
            given = {name: _argument(value, tensors, numbers) for name, value in zip(names, arguments)}
            tensors += call.outs
            spec = CallSpec(op, tuple(map(_tensor, tensors)), len(call.outs), given)
            try:
                found = driver.library_op(_C.driver_of(call.device)[1], spec)
            except NotImplementedError:
                pass
            else:
                if not isinstance(found, LibraryOp):
                    raise TypeError(f"{driver.name}.library_op must return a LibraryOp, not {type(found).__name__}")
                return _launch(call, op, found, tensors, numbers)
        second(call, *arguments)

    return lower


def _argument(value: Any, tensors: list[Tensor], numbers: list[Number]) -> Any:
    """An argument as the driver sees it; tensors and numbers are added to the lists."""
    if isinstance(value, Number):
        numbers.append(value)
        return NumberArgument(len(numbers) - 1)
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(part, Tensor) for part in parts):
        tensors += parts
        return TensorArgument(tuple(range(len(tensors) - len(parts), len(tensors))))
    if isinstance(value, list):
        return [_argument(part, tensors, numbers) for part in value]
    return value


def _tensor(tensor: Tensor) -> TensorSpec:
    """A tensor of a signature: ``int`` makes each size a guard, as the driver's answer holds for these alone."""
    return TensorSpec(
        tensor.dtype.name, tuple(map(int, tensor.shape)), tuple(map(int, tensor.strides)), tensor.placement
    )


def _launch(call: Call, op: str, found: LibraryOp, tensors: Sequence[Tensor], numbers: Sequence[Number]) -> None:
    buffers = list(tensors)
    if found.workspace_bytes:
        buffers.append(call.temporary(uint8, (found.workspace_bytes,)))
    call.pointwise = found.elementwise
    kernel = ForeignKernel(
        op.removeprefix("aten::").replace("::", "_").replace(".", "_"),
        f"/* {op}: the library's function at {found.function:#x}, with {found.context:#x} */",
        (),
        tuple(ScalarParam(f"number{n}", float64) for n in range(len(numbers))),
        index_of(1),
        index_of(int(found.flops)),
        index_of(int(found.bytes)),
        found.function,
        found.context,
    )
    call.launches.append(Launch(kernel, tuple(buffers), (), tuple(numbers)))
