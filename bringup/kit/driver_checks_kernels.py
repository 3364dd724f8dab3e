"""Driver checks of kernels: small ones of the loop IR, rendered for the driver's target, compiled, loaded, launched."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bringup.compile.kernel_cache import binary_of
from bringup.compile.rendering import rendered
from bringup.driver import Launch, PlacementKind
from bringup.ir.index import evaluate_sizes
from bringup.ir.parser import parse
from bringup.kit.driver_checks import Probe, Skip, Wrong, check, difference, expect
from bringup.targets.registry import parse_target
from bringup.targets.source import Source

_NEEDS = ("open_spec", "copy_round_trip")
_KERNEL = (*_NEEDS, "kernel_computes")
#: Costs that make a driver think of a short and of a long launch.
_COSTS = (0.0, 1e6, 1e9)
#: Cells of a launch; the last one is several work units of every target.
_COUNTS = (1, 2, 63, 1000, 4099, 100_001)

_SCALE = """kernel check_scale size n param factor: int64
inout cells: int64[n] strides [1]
grid u < n { store cells[u] = ((cells[u] * factor) + int64(1)) }"""
_PICK = """kernel check_pick size n size m param at: int64
in table: int64[m] strides [1] out picked: int64[n] strides [1]
grid u < n { store picked[u] = table[asindex(at, m, check)] }"""


@dataclass(frozen=True)
class _Kernel:
    """A kernel on the device; its arguments are addresses, then the sizes n and m, then one number."""

    handle: int
    source: Source
    binary: bytes

    def launch(
        self, addresses: tuple[int, ...], sizes: tuple[int, ...], number: int, stream: int = 0, cost: float = 0.0
    ) -> Launch:
        grid = evaluate_sizes(self.source.units, dict(zip("nm", sizes)))
        args = (*addresses, *sizes, number % 2**64)
        return Launch(args, grid, stream, flops=cost, bytes=cost, address_count=len(addresses))


def _load(probe: Probe, text: str) -> _Kernel:
    probe.need("target", "compile", "load", "launch")
    if probe.spec.partitions > 1 and probe.spec.default_placement.kind != PlacementKind.SINGLE:
        raise Skip("its memory is partitioned")
    source = rendered(parse(text), parse_target(probe.driver.target())).source
    binary = binary_of(probe.driver, source.text)
    return _Kernel(probe.driver.load(probe.device, binary, source.entry), source, binary)


def _cells(probe: Probe, values: list[int]) -> int:
    address = probe.alloc(8 * len(values))
    probe.write(address, array("q", values).tobytes())
    return address


def _expect_cells(probe: Probe, address: int, values: list[int], what: str) -> None:
    got, wanted = probe.read(address, 8 * len(values)), array("q", values).tobytes()
    expect(got == wanted, f"{what}: {difference(got, wanted)}")


def _must_raise(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except Exception:
        return
    expect(False, f"{what} did not raise")


@check(needs=_NEEDS)
def kernel_target(probe: Probe) -> None:
    """target names a language and its limits, the same at every call."""
    probe.need("target")
    target = probe.driver.target()
    try:
        parse_target(target)
    except ValueError as error:
        raise Wrong(str(error)) from error
    expect(probe.driver.target() == target, "target() changes from call to call")


@check(needs=_NEEDS)
def kernel_computes(probe: Probe) -> None:
    """A launch runs every unit exactly once, for short and for long work."""
    kernel = _load(probe, _SCALE)
    for count in _COUNTS:
        for cost in _COSTS:
            cells = _cells(probe, list(range(count)))
            probe.driver.launch(probe.device, kernel.handle, kernel.launch((cells,), (count,), 3, cost=cost))
            _expect_cells(probe, cells, [3 * i + 1 for i in range(count)], f"{count} cells, cost {cost:g}")


@check(needs=_KERNEL)
def kernel_negative_argument(probe: Probe) -> None:
    """Arguments arrive with all 64 bits."""
    kernel, cells = _load(probe, _SCALE), _cells(probe, [1, 2, 3])
    probe.driver.launch(probe.device, kernel.handle, kernel.launch((cells,), (3,), -5))
    _expect_cells(probe, cells, [-4, -9, -14], "a factor of -5")


@check(needs=_KERNEL)
def kernel_nothing(probe: Probe) -> None:
    """A launch of no units does nothing."""
    kernel, cells = _load(probe, _SCALE), _cells(probe, [7])
    probe.driver.launch(probe.device, kernel.handle, Launch((cells, 1, 3), 0, 0, address_count=1))
    _expect_cells(probe, cells, [7], "a grid of 0")


@check(needs=_KERNEL)
def kernel_order(probe: Probe) -> None:
    """Launches and copies of one stream run in the order they were queued."""
    kernel = _load(probe, _SCALE)
    for stream in (0, *([probe.stream()] if probe.driver.offers("stream_create") else [])):
        cells = _cells(probe, [0] * 100)
        value = 0
        for turn in range(30):
            if turn % 10 == 5:
                probe.start_write(cells, array("q", [turn] * 100).tobytes(), stream=stream)
                value = turn
            launch = kernel.launch((cells,), (100,), 2, stream, _COSTS[turn % len(_COSTS)])
            probe.driver.launch(probe.device, kernel.handle, launch)
            value = (2 * value + 1 + 2**63) % 2**64 - 2**63
        probe.wait(stream)
        _expect_cells(probe, cells, [value] * 100, f"stream {stream}, 30 launches in a row")


@check(needs=_KERNEL)
def kernel_index_error(probe: Probe) -> None:
    """An index out of range is an IndexError, once, of the launch or of the wait after it; the device goes on."""
    kernel = _load(probe, _PICK)
    table, out = _cells(probe, [10, 11, 12]), _cells(probe, [0] * 64)
    for cost in _COSTS:
        try:
            probe.driver.launch(probe.device, kernel.handle, kernel.launch((table, out), (64, 3), 9, cost=cost))
            probe.wait()
        except IndexError as error:
            expect("9" in str(error) and "3" in str(error), f"the message names neither index nor extent: {error}")
        else:
            expect(False, f"index 9 of 3, cost {cost:g}: neither launch nor wait raised")
        probe.driver.launch(probe.device, kernel.handle, kernel.launch((table, out), (64, 3), 2, cost=cost))
        probe.wait()
        _expect_cells(probe, out, [12] * 64, "the launch after a bad index")


@check(needs=_KERNEL)
def kernel_mistakes(probe: Probe) -> None:
    """A bad binary, a missing function and a handle that was never given are errors, and do no harm."""
    kernel, cells = _load(probe, _SCALE), _cells(probe, [1])
    for binary, entry, what in (
        (b"", kernel.source.entry, "no binary"),
        (b"not a binary" * 10, kernel.source.entry, "a text for a binary"),
        (kernel.binary, "no_such_function", "a missing function"),
    ):
        _must_raise(partial(probe.driver.load, probe.device, binary, entry), f"load of {what}")
    launch = kernel.launch((cells,), (1,), 3)
    for handle in (kernel.handle ^ 1 << 40, 2**64 - 1):
        _must_raise(partial(probe.driver.launch, probe.device, handle, launch), f"launch of handle {handle:#x}")
    probe.driver.launch(probe.device, kernel.handle, launch)
    _expect_cells(probe, cells, [4], "the launch after the mistakes")
