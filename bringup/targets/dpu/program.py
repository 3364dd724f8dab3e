"""Kernels as programs for DPUs: what the host passes, the tasklets' shares, and buffers in MRAM behind windows.

A buffer's element is not in reach of an instruction: it comes to WRAM by DMA, in pieces of 8 bytes at multiples of 8.
Each tasklet has a *window* for each buffer, a few hundred bytes of MRAM that are in WRAM now. Reading an element in the
window is a load after one comparison; outside it the window moves. One that moves to where it ends grows to twice its
size, one that jumps shrinks to 32 bytes, unless a run of neighbours is wanted (``runs.py``): rows are read in long
pieces, scattered elements in short ones.

What is written gathers in the window and goes back as one piece. Words of 8 bytes of which a tasklet wrote only some
bytes may have neighbours that another one writes: these are read, changed and written under a mutex.

The host writes ``bu_args`` (as for every target: addresses, sizes, scalars; here addresses are offsets in MRAM, modulo
2^32, so that a DPU that holds elements from n on gets the address that its element 0 would have) and ``bu_range``, the
work units of this DPU, and reads ``bu_failure``, the report of an index that is out of range.
"""

from __future__ import annotations

import re

from bringup.ir.index import Index
from bringup.ir.kernel import Buffer, Kernel, Local, Stmt, Store, axes_of, extent_of, statements
from bringup.targets.c.access import Accesses
from bringup.targets.c.options import COptions
from bringup.targets.c.render import Function
from bringup.targets.c.unit import Part, declare_numbers, entry_name, unit
from bringup.targets.c.value import storage_of
from bringup.targets.dpu.runs import SPANS, RunLoops, runs_of
from bringup.targets.source import Source
from bringup.targets.target import CannotRender

#: Bytes of WRAM for the windows of all tasklets: half of it; stacks and the program's variables need the rest.
_WINDOWS = 32 << 10
#: Bytes of a window besides what it shows.
_STATE = 24

_WINDOW = """typedef struct {{
  uint8_t bytes[{window}] __attribute__((aligned(8)));
  uint32_t base, valid;  // the part of MRAM that is in here
  uint32_t low, high;    // what was written, and is not in MRAM yet
  uint32_t grown;        // bytes to read next
}} bu_window;
static bu_window bu_windows[NR_TASKLETS][{count}];
MUTEX_POOL_INIT(bu_mutexes, 8)

static void bu_write_some(const uint8_t *from, uint32_t address, uint32_t count) {{  // bytes of one word
  uint64_t word;
  const uint32_t start = address & ~7u;
  mutex_pool_lock(&bu_mutexes, start >> 3);
  mram_read((__mram_ptr const void *)(uintptr_t)start, &word, 8);
  __builtin_memcpy((uint8_t *)&word + (address - start), from, count);
  mram_write(&word, (__mram_ptr void *)(uintptr_t)start, 8);
  mutex_pool_unlock(&bu_mutexes, start >> 3);
}}

static __attribute__((noinline)) void bu_write_back(bu_window *w) {{
  uint32_t low = w->low, high = w->high;
  w->low = w->high = 0;
  if (low & 7) {{
    const uint32_t end = (low | 7) + 1, count = (end < high ? end : high) - low;
    if (low < high) bu_write_some(w->bytes + (low - w->base), low, count);
    low += count;
  }}
  if (low >= high) return;
  const uint32_t whole = (high - low) & ~7u;
  if (whole) mram_write(w->bytes + (low - w->base), (__mram_ptr void *)(uintptr_t)low, whole);
  low += whole;
  if (low < high) bu_write_some(w->bytes + (low - w->base), low, high - low);
}}

static __attribute__((noinline))
void bu_move(bu_window *w, uint32_t address, uint32_t wanted, int reads) {{  // wanted: bytes, a multiple of 8
  if (w->low < w->high) bu_write_back(w);
  const uint32_t start = address & ~7u;
  uint32_t grown = wanted;
  if (w->valid && start == w->base + w->valid) {{
    grown = w->grown < {window} / 2 ? 2 * w->grown : {window};
    if (grown < wanted) grown = wanted;
  }}
  w->grown = grown;
  uint32_t valid = reads ? grown : {window};
  if (valid > BU_MRAM_END - start) valid = BU_MRAM_END - start;
  if (reads) mram_read((__mram_ptr const void *)(uintptr_t)start, w->bytes, valid);
  w->base = start;
  w->valid = valid;
}}

// How much to read for so many bytes from an address on.
static inline __attribute__((always_inline, unused)) uint32_t bu_wanted(uint32_t address, uint32_t count) {{
  const uint32_t whole = (address & 7) + count + 7 & ~7u;
  return whole < {least} ? {least} : whole < {window} ? whole : {window};
}}

static inline __attribute__((always_inline, unused)) void *bu_see(bu_window *w, uint32_t address) {{
  if (__builtin_expect(address - w->base >= w->valid, 0)) bu_move(w, address, {least}, 1);
  return w->bytes + (address - w->base);
}}

static inline __attribute__((always_inline, unused))
void *bu_change(bu_window *w, uint32_t address, uint32_t size, int reads) {{
  if (__builtin_expect(address != w->high || address - w->base >= w->valid, 0)) {{
    if (w->low < w->high) bu_write_back(w);
    if (address - w->base >= w->valid) bu_move(w, address, {least}, reads);
    w->low = address;
  }}
  w->high = address + size;
  return w->bytes + (address - w->base);
}}
"""

_MAIN = """
__host uint64_t bu_args[{arguments}];
__host int64_t bu_range[2];
__host int64_t bu_failure[3];

int main(void) {{
  bu_window *const windows = bu_windows[me()];
  for (int k = 0; k < {count}; k++)
    windows[k] = (bu_window){{.base = 0, .valid = 0, .low = 0, .high = 0, .grown = 0}};
  const int64_t begin = bu_range[0], count = bu_range[1] - begin;
  const int64_t first = begin + count * me() / NR_TASKLETS, last = begin + count * (me() + 1) / NR_TASKLETS;
  {entry}(bu_args, first, last, bu_failure, windows);
  for (int k = 0; k < {count}; k++)
    if (windows[k].low < windows[k].high) bu_write_back(&windows[k]);
  return 0;
}}
"""

#: DPUs have no square root, and their compiler no library with one. Two bits more than the result has, then rounded:
#: the root of a float is never half way between two.
_ROOTS = """
static uint64_t bu_root(uint64_t m, int pairs, int more) {
  uint64_t root = 0, rest = 0;
  for (int at = pairs - 1; at >= -more; at--) {
    rest = rest << 2 | (at >= 0 ? m >> 2 * at & 3 : 0);
    const uint64_t trial = root << 2 | 1;
    root <<= 1;
    if (rest >= trial) { rest -= trial; root |= 1; }
  }
  return (root + 2) >> 2;
}
static __attribute__((unused)) double bu_square_root(double x) {
  union { double value; uint64_t bits; } u = {x};
  if (!(u.bits << 1) || u.bits == 0x7ffull << 52) return x;
  if (u.bits > 0x7ffull << 52) { u.bits = 0x7ff8ull << 48; return u.value; }
  int exponent = (int)(u.bits >> 52);
  uint64_t m = u.bits & (1ull << 52) - 1;
  if (exponent) m |= 1ull << 52; else exponent = 1;
  for (; !(m >> 52); exponent--) m <<= 1;
  if (!(exponent & 1)) m <<= 1;
  u.bits = bu_root(m, 27, 28) + ((uint64_t)(exponent + 1021 >> 1) << 52);
  return u.value;
}
static __attribute__((unused)) float bu_square_root_f(float x) {
  union { float value; uint32_t bits; } u = {x};
  if (!(u.bits << 1) || u.bits == 0xffu << 23) return x;
  if (u.bits > 0xffu << 23) { u.bits = 0x7fcu << 20; return u.value; }
  int exponent = (int)(u.bits >> 23);
  uint32_t m = u.bits & (1u << 23) - 1;
  if (exponent) m |= 1u << 23; else exponent = 1;
  for (; !(m >> 23); exponent--) m <<= 1;
  m <<= 1 + !(exponent & 1);
  u.bits = (uint32_t)bu_root(m, 13, 13) + ((uint32_t)(exponent + 125 >> 1) << 23);
  return u.value;
}
"""

_SQUARE_ROOT = {"": "bu_square_root(", "f": "bu_square_root_f("}

_HEADERS = """#include <stdint.h>
#include <defs.h>
#include <mram.h>
#include <mutex_pool.h>

#define BU_MRAM_END (64u << 20)
"""


def render(kernel: Kernel, options: COptions, tasklets: int) -> Source:
    """Returns the program of a kernel that the verifier accepts."""
    return _Function(kernel, options).program(tasklets)


class _Accesses(Accesses):
    """Buffers behind windows; Locals are C arrays."""

    runs: RunLoops

    def element(self, memory: Buffer | Local, at: str) -> str:
        """An element in its window."""
        if isinstance(memory, Local):
            return super().element(memory, at)
        if memory.name in self.runs.elements:
            return self.runs.elements[memory.name]
        return f"*(const {storage_of(memory.dtype)}_m *)bu_see({_place(self.kernel, memory, at)})"

    def assign(self, memory: Buffer | Local, at: str, text: str) -> None:
        """Writes an element to its window."""
        if isinstance(memory, Local):
            super().assign(memory, at, text)
            return
        if memory.name in self.runs.elements:
            self.w.line(f"{self.runs.elements[memory.name]} = {text};")
            return
        storage, reads = storage_of(memory.dtype), int(memory.name in self.runs.changing)
        place = f"{_place(self.kernel, memory, at)}, {memory.dtype.size}, {reads}"
        self.w.line(f"*({storage}_m *)bu_change({place}) = {text};")


def _place(kernel: Kernel, memory: Buffer, at: str) -> str:
    return f"windows + {kernel.buffers.index(memory)}, b_{memory.name} + (uint32_t)({at}) * {memory.dtype.size}u"


class _Function(Function):
    """The function that a tasklet runs over its share of the units."""

    def __init__(self, kernel: Kernel, options: COptions) -> None:
        super().__init__(kernel, options, _Accesses)
        parts = self.parts
        assert isinstance(parts.accesses, _Accesses)
        combined = {stmt.buffer for stmt in statements(kernel.body) if isinstance(stmt, Store) and stmt.combine}
        self.runs = RunLoops(parts.w, kernel, parts.values.changing | combined)
        self.loops = parts.loops = parts.statements.loops = parts.accesses.runs = self.runs
        self.statements.others.append(self._by_runs)

    def _by_runs(self, stmt: Stmt) -> bool:
        """Emits a statement that opens a loop, by runs if it can; returns whether it did."""
        if not axes_of(stmt):
            return False
        self.runs.stmt = stmt
        self.statements.in_order(stmt)
        return True

    def grid(self) -> Index:
        """Emits the loops over the units, which are grid points, and returns their number."""
        w, axes, body = self.w, self.kernel.axes, self.kernel.body
        if self.plan.one_unit or not axes:
            return super().grid()
        self.locals()
        extents = [self.loops.extent(axis) for axis in axes]
        positions = self.first(extents)
        with self.loops.knowing(*axes), w.scope("for (int64_t unit = begin; unit < end;) {") as scope:
            w.pin = w.depth
            scope.axes.update({axis.name: at for axis, at in zip(axes[:-1], positions)})
            stop, at = w.fresh("a"), positions[-1]
            w.line(f"const int64_t {stop} = end - unit < {extents[-1]} - {at} ? {at} + (end - unit) : {extents[-1]};")
            w.line(f"unit += {stop} - {at};")
            with self.runs.along(axes[-1], at, stop, runs_of(self.kernel, axes[-1], (), body)), w.pinned():
                self.statements.block(body)
            w.line(f"{at} = 0;")
            if axes[:-1]:
                self.next(extents[:-1], positions[:-1])
        return extent_of(axes)

    def program(self, tasklets: int) -> Source:
        """The whole program."""
        kernel, parts = self.kernel, self.parts
        for at, buffer in enumerate(kernel.buffers):
            parts.w.line(f"const uint32_t b_{buffer.name} = (uint32_t)args[{at}];")
        declare_numbers(parts, kernel)
        units = self.grid()
        entry = entry_name(kernel)
        head = f"static __attribute__((noinline)) void {entry}(const uint64_t *args, int64_t begin, int64_t end, "
        text = f"{head}int64_t *report, bu_window *windows) {{\n{parts.w.text()}}}\n"
        count = max(len(kernel.buffers), 1)
        window = _WINDOWS // (tasklets * count) - _STATE
        window = min(1 << max(window, 1).bit_length() - 1, 1024)
        if window < 32:
            raise CannotRender(f"{count} buffers: WRAM has no room for so many windows of {tasklets} tasklets")
        arguments = max(len(kernel.buffers) + len(kernel.sizes) + len(kernel.params), 1)
        part = Part(entry, units, text, frozenset(parts.w.needs), parts.w.snippets)
        body = unit([part], parts.w.target).removeprefix("#include <stdint.h>\n")
        if "__builtin_sqrt" in body:
            body = _ROOTS + re.sub(r"__builtin_sqrt(f?)\(", lambda found: _SQUARE_ROOT[found[1]], body)
        windows = _WINDOW.format(window=window, count=count, least=min(window, 32))
        main = _MAIN.format(arguments=arguments, count=count, entry=entry)
        return Source(_HEADERS + windows + SPANS + body + main, "main", units)
