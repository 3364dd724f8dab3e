"""A random kernel and one that turns its result around: fused or not, the same bits."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.graph.fusion import Fused, Memory, Opaque, fuse_steps
from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import Array
from bringup.ir.expr import Binary
from bringup.ir.index import evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Axis, Buffer, Kernel, SizeRange, Store, strided
from bringup.ir.verify import verify
from bringup.lowering.call import Launch, Number, Tensor, dense_strides
from bringup.lowering.symbolic import IntLike, Trace
from bringup.targets.target import FusionLimits
from tests.loops.bits import same_bits
from tests.loops.random_kernel import Case, cases, random_case
from tests.unit.graph_by_hand import arguments

#: Wide enough for any of these pairs: rules of size are the business of other tests.
ROOMY = FusionLimits(pointers=99, local_bytes=1 << 20)
RESULT: Memory = ("temporary", 0)


def turning(result: Buffer) -> Kernel:
    """Stores its input with all axes reversed."""
    axes = tuple(Axis(f"q{at}", extent) for at, extent in enumerate(result.shape))
    here = tuple(axis.var for axis in axes)
    given = strided("given", result.dtype, result.shape, "in")
    turned = strided("turned", result.dtype, result.shape[::-1], "out")
    names = {name: None for buffer in (given, turned) for name in _sizes_of(buffer)}
    sizes = tuple(SizeRange(name, None if "_s" in name else 0) for name in names)
    kernel = Kernel(
        "turn",
        sizes=sizes,
        buffers=(given, turned),
        axes=axes,
        body=(Store("turned", here[::-1], Binary("max", given[here], given[here])),),
    )
    verify(kernel)
    return kernel


def _sizes_of(buffer: Buffer) -> list[str]:
    return [index.name for index in (*buffer.shape, *buffer.strides) if hasattr(index, "name")]


class Pair:
    """The two launches; the lengths of axes are sizes of the graph if ``symbolic``, else written in."""

    def __init__(self, case: Case, symbolic: bool) -> None:
        self.trace = Trace()
        producer, result = case.kernel, case.kernel.buffer("result")
        assert isinstance(result, Buffer)
        self.memories: dict[Memory, Array] = {}
        self.kept: set[Memory] = set()
        self.dtypes = {("temporary", 1): result.dtype}
        sizes: dict[str, IntLike] = {
            name: self.trace.symbol(name, number) if symbolic and name.endswith("_n") else number
            for name, number in case.sizes.items()
        }
        tensors = []
        for n, buffer in enumerate(producer.buffers):
            memory: Memory = RESULT if buffer is result else ("tensor", n)
            self.memories[memory] = _flat(case.inputs[buffer.name])
            tensors.append(_whole(memory, buffer, self.memories[memory]))
            if buffer.role != "in" and buffer is not result:
                self.kept.add(memory)
                self.dtypes[memory] = buffer.dtype
        params = tuple(Number(-1, case.params[p.name], None, True, self.trace) for p in producer.params)
        first = Launch(producer, tuple(tensors), tuple(sizes[size.name] for size in producer.sizes), params)
        consumer = turning(result)
        shape = tuple(evaluate_sizes(extent, case.sizes) for extent in result.shape)
        for at, stride in enumerate(result.strides):
            sizes[f"given_s{at}"] = evaluate_sizes(stride, case.sizes)
        sizes |= {f"turned_s{at}": stride for at, stride in enumerate(dense_strides(shape[::-1]))}
        turned: Memory = ("temporary", 1)
        self.kept.add(turned)
        self.memories[turned] = np.zeros(int(np.prod(shape)), result.dtype.storage)
        ends = (tensors[producer.buffers.index(result)], _whole(turned, result, self.memories[turned]))
        self.steps = [first, Launch(consumer, ends, tuple(sizes[size.name] for size in consumer.sizes), ())]

    def check(self) -> Fused:
        """Fuses, and compares what is kept."""
        fused = fuse_steps(self.steps, self.kept, ROOMY, dict.fromkeys(self.trace.symbols, (0, None)))
        outcomes = []
        for steps in (self.steps, fused.steps):
            memories = {memory: array.copy() for memory, array in self.memories.items()}
            for step in steps:
                assert not isinstance(step, Opaque)
                verify(step.kernel)
                arrays, sizes, params = arguments(step, memories, dict(self.trace.symbols))
                run(step.kernel, arrays, bind_sizes(step.kernel, arrays, sizes), params)
            outcomes.append(memories)
        for memory in sorted(self.kept):
            assert same_bits(*(memories[memory] for memories in outcomes), self.dtypes[memory]), memory
        return fused


def _flat(array: Array) -> Array:
    base = array if array.base is None else array.base
    assert isinstance(base, np.ndarray)
    return base.reshape(-1).copy()


def _whole(memory: Memory, buffer: Buffer, array: Array) -> Tensor:
    return Tensor(memory, buffer.dtype, (array.size,), (1,), contiguous=True)


@settings(max_examples=80, deadline=None)
@given(cases(functions=True), st.booleans())
def test_fused_equals_unfused(case: Case, symbolic: bool) -> None:
    Pair(case, symbolic).check()


def test_most_of_them_are_fused() -> None:
    """Else the test above would compare nothing."""
    pairs = [Pair(random_case(random.Random(seed), functions=True), bool(seed % 2)) for seed in range(60)]
    with np.errstate(all="ignore"):
        together = sum(len(pair.check().steps) == 1 for pair in pairs)
    assert together >= 40, together
