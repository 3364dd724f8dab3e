"""Ops that only move elements: cat, flip, roll, repeat, and copies of any layout."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.ir.expr import Binary, Load, const
from bringup.ir.guards import within
from bringup.ir.index import Index
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike


def copy(call: Call, target: Tensor, source: Tensor, name: str = "copy") -> None:
    """One kernel that fills a tensor or view with another, broadcast and converted."""
    elementwise(call, [target], [source], lambda x: x, [None], name)


@lowering("bringup::copy_elements_", outputs=lambda *_: ())
def copy_elements(call: Call, self: Tensor, src: Tensor) -> None:
    """What copy_ cannot do by moving bytes: other strides or another dtype."""
    call.pointwise = True
    copy(call, self, src)


def dense(call: Call, tensor: Tensor) -> Tensor:
    """The tensor itself if it is contiguous, else a copy that is."""
    if tensor.contiguous:
        return tensor
    made = call.temporary(tensor.dtype, tensor.shape)
    copy(call, made, tensor)
    return made


@lowering("aten::cat")
def cat(call: Call, tensors: list[Tensor], dim: int) -> None:
    """The tensors one after the other: a copy each into its part of the result."""
    call.apart = True
    out = call.outs[0]
    dim %= max(out.ndim, 1)
    start: IntLike = 0
    for tensor in tensors:
        if tensor.ndim == 1 and tensor.shape[0] == 0:  # an old habit of PyTorch: such a tensor fits everywhere
            continue
        if tensor.numel != 0:
            copy(call, out.narrow(dim, start, tensor.shape[dim]), tensor)
        start = start + tensor.shape[dim]


@lowering("aten::flip")
def flip(call: Call, self: Tensor, dims: Sequence[int]) -> None:
    """Some dimensions read from the end."""
    view = self
    for dim in {d % max(self.ndim, 1) for d in dims} if self.ndim else ():
        view = view.narrow(dim, view.shape[dim] - 1, view.shape[dim], -1)
    copy(call, call.outs[0], view, "flip")


@lowering("aten::roll")
def roll(call: Call, self: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> None:
    """Each dimension rotated: 2 copies per rotated dimension."""
    out = call.outs[0]
    if self.ndim == 0:
        return copy(call, out, self)
    if not dims:  # the flattened tensor is rotated
        if not (self.contiguous and out.contiguous) or len(shifts) != 1:
            raise NoKernel("roll of a flattened tensor needs a contiguous one")
        self, out = (t.view((t.numel,), (1,)) for t in (self, out))
        dims = (0,)
    parts = [(out, self)]
    for shift, d in zip(shifts, dims):
        dim = d % self.ndim
        extent = self.shape[dim]
        by = shift % extent
        pieces = []
        for target, source in parts:
            if by == 0:
                pieces.append((target, source))
                continue
            rest = extent - by
            if target.shape[dim] != extent or source.shape[dim] != extent:
                raise NoKernel("roll of the same dimension twice")
            pieces.append((target.narrow(dim, by, rest), source.narrow(dim, 0, rest)))
            pieces.append((target.narrow(dim, 0, by), source.narrow(dim, rest, by)))
        parts = pieces
    for target, source in parts:
        copy(call, target, source)
    return None


@lowering("aten::narrow_copy")
def narrow_copy(call: Call, self: Tensor, dim: int, start: int, length: int) -> None:
    """Part of a dimension."""
    dim %= self.ndim
    first: IntLike = start if start >= 0 else self.shape[dim] + start
    copy(call, call.outs[0], self.narrow(dim, first, length))


@lowering("aten::conj_physical_", "aten::conj_physical.out")
def conj_physical(call: Call, self: Tensor) -> None:
    """Real numbers are their own conjugates."""
    call.pointwise = True
    if call.outs[0].memory != self.memory:
        copy(call, call.outs[0], self)


@lowering("aten::repeat")
def repeat(call: Call, self: Tensor, repeats: Sequence[int]) -> None:
    """The tensor tiled: the result seen as (copies, size) per dimension."""
    out = call.outs[0]
    ahead = len(repeats) - self.ndim
    shape: list[IntLike] = []
    strides: list[IntLike] = []
    source: list[IntLike] = []
    steps: list[IntLike] = []
    for d, times in enumerate(repeats):
        extent: IntLike = self.shape[d - ahead] if d >= ahead else 1
        shape += [times, extent]
        strides += [out.strides[d] * extent, out.strides[d]]
        source += [1, extent]
        steps += [0, self.strides[d - ahead] if d >= ahead else 0]
    copy(call, out.view(shape, strides), self.view(source, steps))


@lowering("aten::unfold_backward")
def unfold_backward(call: Call, grad_in: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> None:
    """Each element collects from the windows that contain it."""
    out = call.outs[0]
    if out.ndim == 0:  # one window with one element
        return copy(call, out, grad_in.view((), ()))
    dim %= out.ndim
    k = call.kernel()
    shape = [grad_in.shape[dim] if d == dim else out.shape[d] for d in range(out.ndim)]
    grad, y = k.read(grad_in, [*shape, size]), k.write(out)
    i = [k.grid(extent) for extent in out.shape]
    windows = k.size(grad_in.shape[dim])
    wide = opmath(out.dtype)

    def at(w: Index) -> tuple[Index, ...]:
        return (*i[:dim], w, *i[dim + 1 :])

    # Window w holds the element i at place i - w × step, for the last ceil(size / step) windows that start before it.
    def taken(j: Index) -> Load:
        window = i[dim] // step - j
        place = i[dim] - window * step
        inside = Binary("and", within(window, windows), within(place, k.size(size)))
        return Load(grad.name, (*at(window), place), grad.dtype, inside, const(0, grad.dtype))

    total = k.reduce((size + step - 1) // step, lambda j: convert(taken(j), wide), lanes=1)
    k.store(y, tuple(i), total)
    k.launch()
    return None
