"""Loads and stores in C: unit stride, strided, masked, or one lane after the other where nothing else fits."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from bringup.ir.dtypes import DType, boolean
from bringup.ir.expr import AsIndex, IndexValue, Load, const
from bringup.ir.index import Index, Int, atoms
from bringup.ir.kernel import Buffer, Kernel, Local, Store, offset_of
from bringup.ir.walk import bridges
from bringup.targets.c.expr import Values
from bringup.targets.c.lanes import Lanes
from bringup.targets.c.memory import MOVE_SOME, memory_function
from bringup.targets.c.operations import Operations
from bringup.targets.c.scope import Scopes
from bringup.targets.c.value import Value, converted, ctype, first_lanes, kind_of, storage_of

_REPORT = """static __attribute__((noinline, cold))
void bu_report(int64_t *report, int64_t site, int64_t value, int64_t extent) {
#if __GCC_ATOMIC_LLONG_LOCK_FREE == 2
  int64_t none = 0;
  if (!__atomic_compare_exchange_n(report, &none, site, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
#else  // a small core, which runs no threads
  if (report[0]) return;
  report[0] = site;
#endif
  report[1] = value;
  report[2] = extent;
}
"""


@dataclass
class Accesses:
    """Emits loads and stores of one kernel's memory, and values taken as indices."""

    w: Scopes
    ops: Operations
    lanes: Lanes
    values: Values
    kernel: Kernel

    def __post_init__(self) -> None:
        self.memories = {memory.name: memory for memory in self.kernel.memories}
        self._sites: dict[AsIndex, int] = {}
        self.values.emitters |= {Load: self.load, IndexValue: self.index_value}

    # values taken as indices

    def bridged(self, indices: tuple[Index, ...]) -> tuple[dict[AsIndex, Value], Value | None]:
        """The places of the values that indices take as indices, and where all are in range (None: everywhere)."""
        places: dict[AsIndex, Value] = {}
        inside: Value | None = None
        for index in indices:
            for bridge in bridges(index):
                if bridge not in places:
                    places[bridge], good = self._place(bridge)
                    inside = self.ops.both(inside, good)
        return places, inside

    def _place(self, bridge: AsIndex) -> tuple[Value, Value]:
        moving = self.values.moving(bridge.value)
        key = (bridge, None if self.w.active is None else self.w.active.text)
        if not moving:
            found, good = self.w.find((key, "place")), self.w.find((key, "good"))
            if found is not None and good is not None:
                return found, good
        value = self.values.value(bridge.value)
        extent, extent_depth = self.w.index(bridge.extent)
        depth = max(value.depth, extent_depth, self.w.pin, self.w.active.depth if self.w.active else 0)
        if value.kind == "u64":
            text = f"({value.text} < (uint64_t){extent})"
        else:
            low = f"-{extent}" if bridge.mode == "wrap" else "0"
            text = f"((int64_t){value.text} >= {low} && (int64_t){value.text} < {extent})"
        good = self.w.declare(text, "bool", 1, depth)
        if bridge.mode != "skip":
            site = self._sites.setdefault(bridge, len(self._sites) + 1)
            self.w.snippet("report", _REPORT)
            wrong = f"!{good.text}" + (f" && {self.w.active.text}" if self.w.active else "")
            call = f"bu_report(report, {site}, (int64_t){value.text}, {extent})"
            self.w.line(f"if (__builtin_expect({wrong}, 0)) {call};", depth)
        place = f"(int64_t){value.text}"
        if bridge.mode == "wrap" and value.kind != "u64":
            place = f"({place} < 0 ? {place} + {extent} : {place})"
        found = self.w.declare(f"({good.text} ? {place} : 0)", "i64", 1, depth)
        if not moving:
            self.w.remember((key, "place"), found)
            self.w.remember((key, "good"), good)
        return found, good

    def under(self, guard: Value | None) -> AbstractContextManager[None]:
        """Code that happens where a guard holds: elsewhere no index is checked."""
        return self.w.having(active=self.ops.both(self.w.active, guard))

    def index_value(self, expr: IndexValue) -> Value:
        """An index as a value."""
        index = expr.index
        if self.lanes.moves(index):
            assert self.w.vector is not None
            step = self.lanes.stride(index)
            if step is None or any(isinstance(atom, AsIndex) for atom in atoms(index)):
                return self.values.by_lane(expr)
            lanes = self.w.vector.lanes
            (base, depth), (scale, _) = self.w.index(index), self.w.index(step)
            numbers = ", ".join(str(k) for k in range(lanes))
            scaled = "" if step == Int(1) else f" * {scale}"
            return self.w.declare(f"(i64x{lanes}){{{numbers}}}{scaled} + (int64_t){base}", "i64", lanes, depth)
        places, _ = self.bridged((index,))
        text, depth = self.w.index(index, places)
        return self.w.declare(text, "i64", 1, max(depth, self.w.pin if places else 0))

    def _needs_lanes(self, indices: tuple[Index, ...], guard: Value | None) -> bool:
        """True if an access in a vector context has no vector form."""
        if self.w.vector is None:
            return False
        found = [bridge for index in indices for bridge in bridges(index)]
        if any(self.lanes.varies(bridge.value) for bridge in found):
            return True
        masked = (guard is not None and guard.lanes > 1) or (self.w.active is not None and self.w.active.lanes > 1)
        return masked and any(bridge.mode != "skip" for bridge in found)

    # loads

    def load(self, expr: Load) -> Value:
        """An element of memory, or ``other`` where the guard does not hold or a place is out of range."""
        memory = self.memories[expr.buffer]
        guard = None if expr.guard is None else self.values.value(expr.guard)
        place = offset_of(memory, expr.indices)
        step = self.lanes.stride(place)
        if (
            self._needs_lanes(expr.indices, guard)
            or step is None
            or (self.lanes.private(expr.buffer) and step != Int(0))
        ):
            return self.values.by_lane(expr)
        with self.under(guard):
            places, inside = self.bridged(expr.indices)
        guard = self.ops.both(guard, inside)
        other = (
            self.values.value(const(0, expr.type) if expr.other is None else expr.other) if guard is not None else None
        )
        at, depth = self.w.index(place, places)
        depth = max(depth, self.w.depth if expr.buffer in self.values.changing else self.w.pin)
        if guard is not None and other is not None:
            depth = max(depth, guard.depth, other.depth)
        return self._loaded(memory, at, step, guard, other, depth)

    def _loaded(
        self, memory: Buffer | Local, at: str, step: Index, guard: Value | None, other: Value | None, depth: int
    ) -> Value:
        dtype, kind, storage = memory.dtype, kind_of(memory.dtype), storage_of(memory.dtype)
        base = f"b_{memory.name}"
        private = self.lanes.private(memory.name)
        if private and self.w.lane is not None:
            at = f"{at} * {self.lanes.count} + {self.w.lane}"
        if self.w.vector is None or (step == Int(0) and not private):
            text, lanes = self.from_storage(self.element(memory, at), dtype, 1), 1
        else:
            lanes, live = self.w.vector.lanes, self.w.vector.live
            if private:
                raw = f"*(const {storage}x{lanes}_m *)({base} + {at} * {lanes})"
            elif guard is not None and guard.lanes > 1:
                mask = self.ops.spread(guard, lanes, 32).text
                raw = self.memory(
                    "load_masked", storage, lanes, base, at, self.w.index(step)[0], mask, self.w.vector.live
                )
            elif step != Int(1):
                raw = self.memory("gather", storage, lanes, base, at, self.w.index(step)[0], live)
            elif self.w.vector.count is None:
                raw = f"*(const {storage}x{lanes}_m *)({base} + {at})"
            else:
                raw = self.memory("load", storage, lanes, base, at, live)
            text = self.from_storage(raw, dtype, lanes)
        if guard is None or other is None:
            return self.w.declare(text, kind, lanes, depth)
        if guard.lanes == 1:
            no = self.ops.spread(other, max(lanes, other.lanes))
            if no.lanes > lanes:
                text = self.ops.spread(self.w.declare(f"{guard.text} ? {text} : 0", kind, 1, depth), no.lanes).text
            plain = f"({no.ctype}){text}" if lanes > 1 else text  # memory's vector types are types of their own
            return self.w.declare(f"({guard.text} ? {plain} : {no.text})", kind, no.lanes, depth)
        if lanes == 1:  # the same element for each lane, where its guard holds
            some = self.w.call("any", "i32", guard.lanes, self._live_part(guard))
            loaded = self.w.declare(f"({some} ? {text} : 0)", kind, 1, depth)
        else:
            loaded = self.w.declare(text, kind, lanes, depth)
        return self.ops.where(guard, loaded, other)

    def element(self, memory: Buffer | Local, at: str) -> str:
        """An element as it lies in memory; dialects whose buffers are not C arrays say how else it is read."""
        return f"b_{memory.name}[{at}]"

    def assign(self, memory: Buffer | Local, at: str, text: str) -> None:
        """Writes an element."""
        self.w.line(f"b_{memory.name}[{at}] = {text};")

    def _live_part(self, mask: Value) -> str:
        """A mask without the lanes that do not count."""
        text = self.ops.spread(mask, mask.lanes, 32).text
        if self.w.vector is None or self.w.vector.count is None:
            return text
        return f"({text} & {first_lanes(mask.lanes, self.w.vector.count)})"

    def memory(self, form: str, storage: str, lanes: int, *arguments: str) -> str:
        """A call of one of memory.py's functions."""
        if form.endswith("masked"):
            self.w.needs.add(("any", "i32", lanes))
        if self.w.target.isa.startswith("rv"):
            self.w.snippet("move_some", MOVE_SOME)
        self.w.snippet(f"{form}_{storage}x{lanes}", memory_function(form, storage, lanes))
        return f"bu_{form}_{storage}x{lanes}({', '.join(arguments)})"

    def from_storage(self, text: str, dtype: DType, lanes: int) -> str:
        """What lies in memory, as a value."""
        if dtype is boolean:
            # Compared as bytes: gcc 12 widens the result in one instruction, and would take the bytes themselves apart.
            # A softmax behind a mask took 5.9 ms that way and takes 2.5.
            # To clang the result is char, which is unsigned on RISC-V: hence the cast.
            truth = f"({text} != 0)"
            return truth if lanes == 1 else f"__builtin_convertvector((i8x{lanes}){truth}, i32x{lanes})"
        if dtype.is_half:
            return self.w.call(f"from_{'f16' if dtype.name == 'float16' else 'bf16'}", "f32", lanes, text)
        if dtype.is_integer and dtype.bits < 32:
            kind = kind_of(dtype)
            return f"({ctype(kind)}){text}" if lanes == 1 else converted(text, storage_of(dtype), kind, lanes)
        return text

    def to_storage(self, value: Value, dtype: DType) -> str:
        """A value as it lies in memory."""
        lanes, storage = value.lanes, storage_of(dtype)
        if dtype is boolean:
            if lanes == 1:
                return f"(uint8_t){value.text}"
            return f"((u8x{lanes}){converted(value.text, f'i{value.mask_bits}', 'i8', lanes)} & 1)"
        if dtype.is_half:
            whole = self.ops.before_narrowing.get(value.text, value.text)
            return self.w.call("from_f32", "f16" if dtype.name == "float16" else "bf16", lanes, whole)
        if dtype.is_integer and dtype.bits < 32 and lanes > 1:
            return converted(value.text, value.kind, storage, lanes)
        return value.text

    # stores

    def store(self, stmt: Store) -> None:
        """A Store, with its guard and combine."""
        guard = None if stmt.guard is None else self.values.value(stmt.guard)
        memory = self.memories[stmt.buffer]
        place = offset_of(memory, stmt.indices)
        step = self.lanes.stride(place)
        private = self.lanes.private(stmt.buffer)
        masked = guard is not None and guard.lanes > 1
        alone = (
            self._needs_lanes(stmt.indices, guard)
            or step is None
            or (private and (step != Int(0) or masked))
            or (masked and (stmt.combine is not None or self.values.raising(stmt.value)))
            or (stmt.combine is not None and (stmt.mode != "unique" or step == Int(0)) and not private)
        )
        if self.w.vector is not None and alone:
            with self.lanes.each():
                self.store(stmt)
            return
        assert step is not None
        with self.under(guard):
            places, inside = self.bridged(stmt.indices)
        guard = self.ops.both(guard, inside)
        with self.under(guard):
            value = self.values.value(stmt.value)
        at, _ = self.w.index(place, places)
        if guard is not None and guard.lanes == 1:
            with self.w.scope(f"if ({guard.text}) {{"):
                self._write(stmt, memory, at, step, value, None)
        else:
            self._write(stmt, memory, at, step, value, guard)

    def _write(
        self, stmt: Store, memory: Buffer | Local, at: str, step: Index, value: Value, mask: Value | None
    ) -> None:
        dtype, storage, base = memory.dtype, storage_of(memory.dtype), f"b_{memory.name}"
        if stmt.combine is not None:
            old = self._loaded(memory, at, step, None, None, self.w.depth)
            value = self.ops.binary(stmt.combine, old, value, dtype)
        if self.w.vector is None:
            if self.lanes.private(memory.name) and self.w.lane is not None:
                at = f"{at} * {self.lanes.count} + {self.w.lane}"
            self.assign(memory, at, self.to_storage(value, dtype))
            return
        lanes, live = self.w.vector.lanes, self.w.vector.live
        text = self.to_storage(self.ops.spread(value, lanes, value.mask_bits), dtype)
        if self.lanes.private(memory.name):
            self.w.line(f"*({storage}x{lanes}_m *)({base} + {at} * {lanes}) = {text};")
        elif mask is not None:
            where = self.ops.spread(mask, lanes, 32).text
            steps = self.w.index(step)[0]
            self.w.line(self.memory("store_masked", storage, lanes, base, at, steps, text, where, live) + ";")
        elif step != Int(1):
            self.w.line(self.memory("scatter", storage, lanes, base, at, self.w.index(step)[0], text, live) + ";")
        elif self.w.vector.count is None:
            self.w.line(f"*({storage}x{lanes}_m *)({base} + {at}) = {text};")
        else:
            self.w.line(self.memory("store", storage, lanes, base, at, text, live) + ";")
