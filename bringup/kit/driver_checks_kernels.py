"""Driver checks of kernels: compile, load and launch small C kernels written by hand after the ABI in driver.h."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial

from bringup.compile.kernel_cache import binary_of
from bringup.driver import Launch, PlacementKind
from bringup.kit.driver_checks import Probe, Skip, Wrong, check, difference, expect
from bringup.targets.registry import parse_target

_NEEDS = ("open_spec", "copy_round_trip")
_KERNEL = (*_NEEDS, "kernel_computes")
#: Costs that make a driver think of a short and of a long launch.
_COSTS = (0.0, 1e6, 1e9)

_SOURCE = """
#include <stdint.h>
/* cells[u] = cells[u] * factor + 1, one cell per unit */
void bringup_check_scale(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  int64_t *cells = (int64_t *)(uintptr_t)args[0], factor = (int64_t)args[1];
  for (int64_t u = begin; u < end; u++) cells[u] = cells[u] * factor + 1;
}
/* out[u] = in[at], where at is args[2] in every unit and has to be below args[3] */
void bringup_check_pick(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  int64_t *out = (int64_t *)(uintptr_t)args[0], *in = (int64_t *)(uintptr_t)args[1];
  int64_t at = (int64_t)args[2], extent = (int64_t)args[3];
  if (at < 0 || at >= extent) {
    if (!report[0]) report[0] = 1, report[1] = at, report[2] = extent;
    at = 0;
  }
  for (int64_t u = begin; u < end; u++) out[u] = in[at];
}
"""


def _load(probe: Probe, entry: str) -> int:
    """A kernel of the source above, where the driver takes C."""
    probe.need("target", "compile", "load", "launch")
    if parse_target(probe.driver.target()).language != "c":
        raise Skip(f"its kernels are not C: {probe.driver.target()}")
    if probe.spec.partitions > 1 and probe.spec.default_placement.kind != PlacementKind.SINGLE:
        raise Skip("its memory is partitioned")
    return probe.driver.load(probe.device, binary_of(probe.driver, _SOURCE), entry)


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
    kernel = _load(probe, "bringup_check_scale")
    for grid in (1, 2, 63, 1000, 4099):
        for cost in _COSTS:
            cells = _cells(probe, list(range(grid)))
            launch = Launch((cells, 3), grid, 0, flops=cost, bytes=cost, address_count=1)
            probe.driver.launch(probe.device, kernel, launch)
            _expect_cells(probe, cells, [3 * i + 1 for i in range(grid)], f"{grid} units, cost {cost:g}")


@check(needs=_KERNEL)
def kernel_negative_argument(probe: Probe) -> None:
    """Arguments arrive with all 64 bits."""
    kernel, cells = _load(probe, "bringup_check_scale"), _cells(probe, [1, 2, 3])
    probe.driver.launch(probe.device, kernel, Launch((cells, 2**64 - 5), 3, 0, address_count=1))
    _expect_cells(probe, cells, [-4, -9, -14], "a factor of -5")


@check(needs=_KERNEL)
def kernel_nothing(probe: Probe) -> None:
    """A launch of no units does nothing."""
    kernel, cells = _load(probe, "bringup_check_scale"), _cells(probe, [7])
    probe.driver.launch(probe.device, kernel, Launch((cells, 3), 0, 0, address_count=1))
    _expect_cells(probe, cells, [7], "a grid of 0")


@check(needs=_KERNEL)
def kernel_order(probe: Probe) -> None:
    """Launches and copies of one stream run in the order they were queued."""
    kernel = _load(probe, "bringup_check_scale")
    for stream in (0, *([probe.stream()] if probe.driver.offers("stream_create") else [])):
        cells = _cells(probe, [0] * 100)
        value = 0
        for turn in range(30):
            if turn % 10 == 5:
                probe.start_write(cells, array("q", [turn] * 100).tobytes(), stream=stream)
                value = turn
            cost = _COSTS[turn % len(_COSTS)]
            probe.driver.launch(probe.device, kernel, Launch((cells, 2), 100, stream, cost, cost, address_count=1))
            value = (2 * value + 1 + 2**63) % 2**64 - 2**63
        probe.wait(stream)
        _expect_cells(probe, cells, [value] * 100, f"stream {stream}, 30 launches in a row")


@check(needs=_KERNEL)
def kernel_index_error(probe: Probe) -> None:
    """An index out of range is an IndexError, once, of the launch or of the wait after it; the device goes on."""
    kernel = _load(probe, "bringup_check_pick")
    table, out = _cells(probe, [10, 11, 12]), _cells(probe, [0] * 64)
    for cost in _COSTS:
        try:
            bad = Launch((out, table, 9, 3), 64, 0, cost, cost, address_count=2)
            probe.driver.launch(probe.device, kernel, bad)
            probe.wait()
        except IndexError as error:
            expect("9" in str(error) and "3" in str(error), f"the message names neither index nor extent: {error}")
        else:
            expect(False, f"index 9 of 3, cost {cost:g}: neither launch nor wait raised")
        probe.driver.launch(probe.device, kernel, Launch((out, table, 2, 3), 64, 0, cost, cost, address_count=2))
        probe.wait()
        _expect_cells(probe, out, [12] * 64, "the launch after a bad index")


@check(needs=_KERNEL)
def kernel_mistakes(probe: Probe) -> None:
    """A bad binary, a missing function and a handle that was never given are errors, and do no harm."""
    kernel, cells = _load(probe, "bringup_check_scale"), _cells(probe, [1])
    for binary, entry, what in (
        (b"", "bringup_check_scale", "no binary"),
        (b"not a binary" * 10, "bringup_check_scale", "a text for a binary"),
        (probe.driver.compile(_SOURCE), "no_such_function", "a missing function"),
    ):
        _must_raise(partial(probe.driver.load, probe.device, binary, entry), f"load of {what}")
    launch = Launch((cells, 3), 1, 0, address_count=1)
    for handle in (kernel ^ 1 << 40, 2**64 - 1):
        _must_raise(partial(probe.driver.launch, probe.device, handle, launch), f"launch of handle {handle:#x}")
    probe.driver.launch(probe.device, kernel, launch)
    _expect_cells(probe, cells, [4], "the launch after the mistakes")
