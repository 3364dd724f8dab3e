"""Fused kernels against their parts, compiled by the C target, side by side: what fusion gains, and where it loses.

    python benchmarks/fusion.py
    python benchmarks/fusion.py softmax --rounds 40

A graph is made by hand, fused, and both programs run on the same memories, one thread, without a device. A round is a
few bursts of each side in turn, its time the best burst; `fused / parts` is the median over rounds. Exit status 1 if a
fused program is slower than its parts by more than 5 %.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bringup.graph.fusion import Step
from bringup.ir.dtypes import bfloat16, boolean, float32, int64
from bringup.ir.index import evaluate_sizes
from bringup.ir.kernel import Kernel
from bringup.ir.simplify import simplify
from bringup.lowering.call import Launch, Tensor
from bringup.targets.c.render import render
from bringup.targets.toolchain import compile_c, host_target
from tests.loops.compiled import _ENTRY, launch_words, load_library
from tests.unit.graph_by_hand import Graph, arguments

SLOWER = 1.05
Build = Callable[[Graph], None]
CASES: dict[str, Build] = {}


def case(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES[name] = build
        return build

    return register


def norm(g: Graph, x: Tensor, width: int) -> list[Tensor]:
    rows = x.shape[0]
    outs = [((rows, width), None), ((rows, 1), None), ((rows, 1), None)]
    return g.many("aten::native_layer_norm", x, [width], g.input((width,)), g.input((width,)), 1e-5, outs=outs)


@case("pointwise chain, 1M")
def chain(g: Graph) -> None:
    x, y = g.input((1 << 20,)), g.input((1 << 20,))
    a = g("aten::mul.Tensor", x, y)
    g.keep(g("aten::add.Tensor", g("aten::relu", a), y, 1.0))


@case("bias + gelu, 512 x 1024")
def bias_gelu(g: Graph) -> None:
    x = g("aten::mul.Tensor", g.input((512, 1024)), 0.5)
    g.keep(g("aten::gelu", g("aten::add.Tensor", x, g.input((1024,)), 1.0), "none"))


@case("transposed view, 512 x 512")
def transposed(g: Graph) -> None:
    x = g("aten::mul.Tensor", g.input((512, 512)), 0.5)
    g.keep(g("aten::add.Tensor", x.permute([1, 0]), g.input((512, 512)), 1.0, shape=(512, 512)))


@case("transposed view, product kept, 512 x 512")
def transposed_kept(g: Graph) -> None:
    x = g("aten::mul.Tensor", g.input((512, 512)), 0.5)
    g.keep(x, g("aten::add.Tensor", x.permute([1, 0]), g.input((512, 512)), 1.0, shape=(512, 512)))


@case("siblings across each other, 512 x 512")
def crossed(g: Graph) -> None:
    x = g.input((512, 512))
    g.keep(g("aten::exp", x), g("aten::clone", x.permute([1, 0]), 0, shape=(512, 512)))


@case("three transposed operands, 256 x 256")
def transposed_more(g: Graph) -> None:
    x = g("aten::mul.Tensor", g("aten::add.Tensor", g.input((256, 256)), g.input((256, 256)), 1.0), g.input((256, 256)))
    g.keep(g("aten::clone", x.permute([1, 0]), 0, shape=(256, 256)))


@case("narrow rows + bias, 65536 x 10")
def narrow(g: Graph) -> None:
    x = g("aten::relu", g.input((65536, 10)))
    g.keep(g("aten::add.Tensor", x, g.input((10,)), 1.0))


@case("exp + narrow rows + bias, 65536 x 10")
def dear_narrow(g: Graph) -> None:
    g.keep(g("aten::add.Tensor", g("aten::exp", g.input((65536, 10))), g.input((10,)), 1.0))


@case("exp + rows of three, 65536 x 3")
def dear_three(g: Graph) -> None:
    g.keep(g("aten::add.Tensor", g("aten::exp", g.input((65536, 3))), g.input((3,)), 1.0))


@case("siblings with and without narrow rows, 65536 x 10")
def narrow_siblings(g: Graph) -> None:
    x = g.input((65536, 10))
    g.keep(g("aten::exp", x), g("aten::add.Tensor", x, g.input((10,)), 1.0))


@case("exp + heads transposed, 16 x 128 x 8 x 8")
def dear_heads(g: Graph) -> None:
    x = g("aten::exp", g.input((16, 128, 8, 8)))
    g.keep(g("aten::clone", x.permute([0, 2, 1, 3]), 0, shape=(16, 8, 128, 8)))


@case("channel scale + relu, 8 x 64 x 28 x 28")
def channels(g: Graph) -> None:
    x = g("aten::neg", g.input((8, 64, 28, 28)))
    g.keep(g("aten::relu", g("aten::mul.Tensor", x, g.input((64, 1, 1)))))


@case("siblings, 1M")
def siblings(g: Graph) -> None:
    x = g.input((1 << 20,))
    g.keep(g("aten::mul.Tensor", x, 0.5), g("aten::abs", x))


@case("adam step, 256K")
def adam(g: Graph) -> None:
    p, grad, m, v = (g.input((1 << 18,)) for _ in range(4))
    m2 = g("aten::add.Tensor", g("aten::mul.Tensor", m, 0.9), g("aten::mul.Tensor", grad, 0.1), 1.0)
    v2 = g("aten::addcmul", g("aten::mul.Tensor", v, 0.99), grad, grad, 0.01)
    root = g("aten::add.Tensor", g("aten::sqrt", g("aten::abs", v2)), 1e-8, 1.0)
    g.copy_into(p, g("aten::addcdiv", p, m2, root, -0.001))
    g.copy_into(m, m2)
    g.copy_into(v, v2)


@case("residual + layer_norm, sum kept, 512 x 768")
def residual_norm(g: Graph) -> None:
    s = g("aten::add.Tensor", g.input((512, 768)), g.input((512, 768)), 1.0)
    g.keep(s, norm(g, s, 768)[0])


@case("residual + layer_norm, 512 x 768")
def residual_norm_only(g: Graph) -> None:
    g.keep(norm(g, g("aten::add.Tensor", g.input((512, 768)), g.input((512, 768)), 1.0), 768)[0])


@case("gelu + layer_norm, 512 x 768")
def gelu_norm(g: Graph) -> None:
    g.keep(norm(g, g("aten::gelu", g.input((512, 768)), "none"), 768)[0])


@case("layer_norm + relu, 512 x 768")
def norm_relu(g: Graph) -> None:
    g.keep(g("aten::relu", norm(g, g.input((512, 768)), 768)[0]))


@case("scale + mask + softmax, 2048 x 128")
def masked_softmax(g: Graph) -> None:
    x = g("aten::mul.Tensor", g.input((2048, 128)), 0.125)
    g.keep(g("aten::_softmax", g("aten::add.Tensor", x, g.input((2048, 128)), 1.0), -1, False))


@case("softmax + mul, probabilities kept, 512 x 512")
def softmax_mul(g: Graph) -> None:
    p = g("aten::_softmax", g.input((512, 512)), -1, False)
    g.keep(p, g("aten::mul.Tensor", p, g.input((512, 512))))


@case("scale + softmax over channels, 8 x 32 x 784")
def softmax_channels(g: Graph) -> None:
    x = g("aten::mul.Tensor", g.input((8, 32, 784)), 0.5)
    g.keep(g("aten::_softmax", x, 1, False))


@case("exp + softmax over channels, 8 x 32 x 784")
def dear_channels_softmax(g: Graph) -> None:
    g.keep(g("aten::_softmax", g("aten::exp", g.input((8, 32, 784))), 1, False))


@case("exp + softmax over many channels, 2 x 2048 x 64")
def many_channels_softmax(g: Graph) -> None:
    g.keep(g("aten::_softmax", g("aten::exp", g.input((2, 2048, 64))), 1, False))


@case("softmax over channels + relu, 8 x 32 x 784")
def channels_softmax_relu(g: Graph) -> None:
    g.keep(g("aten::relu", g("aten::_softmax", g.input((8, 32, 784)), 1, False)))


@case("layer_norm backward + residual, 512 x 768")
def norm_backward(g: Graph) -> None:
    x, grad = g.input((512, 768)), g("aten::mul.Tensor", g.input((512, 768)), g.input((512, 768)))
    mean, scale, w, b = g.input((512, 1)), g.input((512, 1)), g.input((768,)), g.input((768,))
    outs = [((512, 768), None), ((768,), None), ((768,), None)]
    dx, dw, db = g.many(
        "aten::native_layer_norm_backward", grad, x, [768], mean, scale, w, b, [True, True, True], outs=outs
    )
    g.keep(g("aten::add.Tensor", dx, grad, 1.0), dw, db)


@case("softmax backward + scale, 2048 x 128")
def softmax_backward(g: Graph) -> None:
    p, grad = g.input((2048, 128)), g("aten::mul.Tensor", g.input((2048, 128)), g.input((2048, 128)))
    dx = g("aten::_softmax_backward_data", grad, p, -1, 6)
    g.keep(g("aten::mul.Tensor", dx, 0.125))


@case("hand-written norm, 512 x 768")
def hand_norm(g: Graph) -> None:
    x = g.input((512, 768))
    d = g("aten::sub.Tensor", x, g("aten::mean.dim", x, [-1], True, None, shape=(512, 1)), 1.0)
    v = g("aten::mean.dim", g("aten::pow.Tensor_Scalar", d, 2.0), [-1], True, None, shape=(512, 1))
    r = g("aten::rsqrt", g("aten::add.Tensor", v, 1e-5, 1.0))
    g.keep(g("aten::mul.Tensor", g("aten::mul.Tensor", d, r), g.input((768,))))


@case("log_softmax + nll, 512 x 1000")
def cross_entropy(g: Graph) -> None:
    x = g("aten::_log_softmax", g.input((512, 1000)), 1, False)
    outs = [((), None), ((), None)]
    g.keep(*g.many("aten::nll_loss_forward", x, g.input((512,), int64), None, 1, -100, outs=outs))


@case("mean square error, 1M")
def loss(g: Graph) -> None:
    d = g("aten::sub.Tensor", g.input((1 << 20,)), g.input((1 << 20,)), 1.0)
    g.keep(g("aten::sum", g("aten::mul.Tensor", d, d), None, shape=()))


@case("bias gradient of a product, 2048 x 512")
def bias_gradient(g: Graph) -> None:
    p = g("aten::mul.Tensor", g.input((2048, 512)), g.input((2048, 512)))
    g.keep(g("aten::sum.dim_IntList", p, [0], False, None, shape=(512,)))


@case("row sum + divide, 2048 x 64")
def row_divide(g: Graph) -> None:
    x = g.input((2048, 64))
    g.keep(g("aten::div.Tensor", x, g("aten::sum.dim_IntList", x, [1], True, None, shape=(2048, 1))))


@case("mm + bias + gelu + residual, 128 x 256 x 512")
def linear(g: Graph) -> None:
    m = g("aten::mm", g.input((128, 256)), g.input((256, 512)), shape=(128, 512))
    h = g("aten::add.Tensor", m, g.input((512,)), 1.0)
    g.keep(g("aten::add.Tensor", g("aten::gelu", h, "none"), g.input((128, 512)), 1.0))


@case("mm + gelu, both kept, 256 x 64 x 1024")
def linear_kept(g: Graph) -> None:
    m = g("aten::mm", g.input((256, 64)), g.input((64, 1024)), shape=(256, 1024))
    g.keep(m, g("aten::gelu", m, "none"))


@case("addmm + heads transposed, 128 x 256 x 256")
def heads(g: Graph) -> None:
    m = g("aten::addmm", g.input((256,)), g.input((128, 256)), g.input((256, 256)), 1.0, 1.0, shape=(128, 256))
    by_head = m.view((128, 8, 32), (256, 32, 1)).permute([1, 0, 2])
    g.keep(g("aten::clone", by_head, 0, shape=(8, 128, 32)))


@case("small linear + relu, 4 x 512 x 512")
def small_linear(g: Graph) -> None:
    w = g.input((512, 512))
    m = g("aten::addmm", g.input((512,)), g.input((4, 512)), w.permute([1, 0]), 1.0, 1.0, shape=(4, 512))
    g.keep(g("aten::relu", m))


@case("conv + scale + relu, 2 x 32 x 28 x 28")
def convolution(g: Graph) -> None:
    x, w = g.input((2, 32, 28, 28)), g.input((32, 32, 3, 3))
    arguments_ = (x, w, g.input((32,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    c = g("aten::convolution_overrideable", *arguments_, shape=(2, 32, 28, 28))
    g.keep(g("aten::relu", g("aten::mul.Tensor", c, g.input((32, 1, 1)))))


@case("conv + batch norm + residual + relu, 2 x 32 x 28 x 28")
def batch_norm(g: Graph) -> None:
    x, w = g.input((2, 32, 28, 28)), g.input((32, 32, 3, 3))
    options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    c = g("aten::convolution_overrideable", x, w, *options, shape=(2, 32, 28, 28))
    scale = g("aten::mul.Tensor", g("aten::rsqrt", g("aten::abs", g.input((32, 1, 1)))), g.input((32, 1, 1)))
    y = g("aten::add.Tensor", g("aten::mul.Tensor", c, scale), g.input((32, 1, 1)), 1.0)
    g.keep(g("aten::relu", g("aten::add.Tensor", y, x, 1.0)))


@case("1 x 1 conv + batch norm, 2 x 64 x 14 x 14")
def batch_norm_small(g: Graph) -> None:
    x, w = g.input((2, 64, 14, 14)), g.input((64, 64, 1, 1))
    options = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    c = g("aten::convolution_overrideable", x, w, *options, shape=(2, 64, 14, 14))
    scale = g("aten::mul.Tensor", g("aten::rsqrt", g("aten::abs", g.input((64, 1, 1)))), g.input((64, 1, 1)))
    g.keep(g("aten::add.Tensor", g("aten::mul.Tensor", c, scale), g.input((64, 1, 1)), 1.0))


@case("channel scale by a dear value, 8 x 64 x 28 x 28")
def dear_channels(g: Graph) -> None:
    scale = g("aten::rsqrt", g("aten::abs", g.input((64, 1, 1))))
    g.keep(g("aten::mul.Tensor", g.input((8, 64, 28, 28)), scale))


@case("bmm + mask, softmax + clone, 8 x 128 x 128")
def attention(g: Graph) -> None:
    s = g("aten::bmm", g.input((8, 128, 32)), g.input((8, 32, 128)), shape=(8, 128, 128))
    s = g("aten::add.Tensor", g("aten::mul.Tensor", s, 0.125), g.input((128, 128)), 1.0)
    g.keep(g("aten::clone", g("aten::_softmax", s, -1, False), None))


@case("mm + residual, RMS norm, 256 x 256 x 512")
def rms(g: Graph) -> None:
    m = g("aten::mm", g.input((256, 256)), g.input((256, 512)), shape=(256, 512))
    x = g("aten::add.Tensor", m, g.input((256, 512)), 1.0)
    v = g("aten::mean.dim", g("aten::pow.Tensor_Scalar", x, 2.0), [-1], True, None, shape=(256, 1))
    r = g("aten::rsqrt", g("aten::add.Tensor", v, 1e-5, 1.0))
    g.keep(x, g("aten::mul.Tensor", g("aten::mul.Tensor", x, r), g.input((512,))))


@case("gated unit, 512 x 1024")
def gated(g: Graph) -> None:
    x = g("aten::add.Tensor", g.input((512, 1024)), g.input((1024,)), 1.0)
    left, right = x.narrow(1, 0, 512), x.narrow(1, 512, 512)
    g.keep(g("aten::mul.Tensor", left, g("aten::sigmoid", right, shape=(512, 512)), shape=(512, 512)))


@case("embedding + positions + layer_norm, 512 x 256")
def embedded(g: Graph) -> None:
    e = g("aten::embedding", g.input((1000, 256)), g.input((512,), int64), -1, False, False, shape=(512, 256))
    g.keep(norm(g, g("aten::add.Tensor", e, g.input((512, 256)), 1.0), 256)[0])


@case("embedding, kept, + layer_norm, 256 x 256")
def embedded_kept(g: Graph) -> None:
    e = g("aten::embedding", g.input((1000, 256)), g.input((256,), int64), -1, False, False, shape=(256, 256))
    g.keep(e, norm(g, e, 256)[0])


@case("linear + silu, 256 x 256 x 1024")
def linear_silu(g: Graph) -> None:
    w = g.input((1024, 256)).permute([1, 0])
    m = g("aten::addmm", g.input((1024,)), g.input((256, 256)), w, 1.0, 1.0, shape=(256, 1024))
    g.keep(g("aten::silu", m))


@case("linear + product, both kept, 256 x 256 x 1024")
def linear_product(g: Graph) -> None:
    w = g.input((1024, 256)).permute([1, 0])
    m = g("aten::addmm", g.input((1024,)), g.input((256, 256)), w, 1.0, 1.0, shape=(256, 1024))
    g.keep(m, g("aten::mul.Tensor", m, g.input((256, 1024))))


@case("softmax + dropout, 2048 x 64")
def softmax_dropout(g: Graph) -> None:
    p = g("aten::_softmax", g.input((2048, 64)), -1, False)
    g.keep(p, *g.many("aten::native_dropout", p, 0.1, True, outs=[(None, None), (None, boolean)]))


@case("relu + max_pool 3 x 3, 4 x 32 x 56 x 56")
def pooled(g: Graph) -> None:
    x = g("aten::relu", g.input((4, 32, 56, 56)))
    outs = [((4, 32, 28, 28), None), ((4, 32, 28, 28), int64)]
    arguments_ = (x, [3, 3], [2, 2], [1, 1], [1, 1], False)
    g.keep(*g.many("aten::max_pool2d_with_indices", *arguments_, outs=outs))


@case("bfloat16 scale + softmax, 1024 x 256")
def half(g: Graph) -> None:
    x = g("aten::mul.Tensor", g.input((1024, 256), bfloat16), 0.125)
    g.keep(g("aten::_softmax", x, -1, False))


@case("cast to float32 + mm, 128 x 256 x 256")
def cast_mm(g: Graph) -> None:
    x = g("aten::clone", g.input((128, 256), bfloat16), None, dtype=float32)
    g.keep(g("aten::mm", x, g.input((256, 256)), shape=(128, 256)))


def aligned(array: Any) -> Any:
    """A copy that starts at a multiple of 512 bytes."""
    raw = np.empty(array.nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 512
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


class Program:
    """Steps compiled and bound to memories: calling it runs them all, one after the other."""

    def __init__(self, g: Graph, steps: Sequence[Step], memories: Any, built: dict[Kernel, tuple[Any, Any]]) -> None:
        self.calls = []
        for step in steps:
            assert isinstance(step, Launch)
            assert isinstance(step.kernel, Kernel)
            if step.kernel not in built:
                source = render(simplify(step.kernel), host_target())
                library = load_library(compile_c(source.text, host_target()))
                built[step.kernel] = (_ENTRY((source.entry, library)), source.units)
            function, units = built[step.kernel]
            arrays, sizes, params = arguments(step, memories, dict(g.trace.symbols))
            words = launch_words(step.kernel, arrays, sizes, params)
            self.calls.append((function, words, evaluate_sizes(units, sizes), (ctypes.c_int64 * 3)()))

    def __call__(self) -> None:
        for function, words, units, report in self.calls:
            function(words, 0, units, report)


def measured(parts: Program, fused: Program, rounds: int) -> tuple[float, float, float]:
    """Seconds of each side, and the median ratio."""
    times: tuple[list[float], list[float]] = ([], [])
    parts(), fused()
    start = perf_counter()
    parts()
    count = max(1, int(300e-6 / (perf_counter() - start)))
    for number in range(rounds):
        best = [float("inf"), float("inf")]
        for burst in range(3):
            for which in (0, 1) if (number + burst) % 2 else (1, 0):
                side = (parts, fused)[which]
                start = perf_counter()
                for _ in range(count):
                    side()
                best[which] = min(best[which], (perf_counter() - start) / count)
        for which in (0, 1):
            times[which].append(best[which])
    ratio = statistics.median(b / a for a, b in zip(*times))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    table = Table("case", "launches", "parts", "fused", "fused / parts")
    built: dict[Kernel, tuple[Any, Any]] = {}
    slower = []
    for name, build in CASES.items():
        if options.words and not any(word in name for word in options.words):
            continue
        g = Graph()
        build(g)
        fused = g.fused()
        # The same for both, and aligned as a device's memory is: where memory lies makes 15 % by itself.
        memories = {memory: aligned(array) for memory, array in g.arrays().items()}
        programs = Program(g, g.steps, memories, built), Program(g, fused.steps, memories, built)
        before, after, ratio = measured(*programs, options.rounds)
        if ratio > SLOWER:
            slower.append(name)
        times = (f"{before * 1e6:,.0f} µs", f"{after * 1e6:,.0f} µs")
        style = "red" if ratio > SLOWER else ""
        table.add_row(name, f"{len(g.steps)} → {len(fused.steps)}", *times, f"{ratio:.2f}", style=style)
    Console().print(table)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
