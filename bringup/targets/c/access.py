"""Loads and stores in C: unit stride, strided, masked, or one lane after the other where nothing else fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup.ir.dtypes import DType, boolean
from bringup.ir.expr import AsIndex, Expr, Load, const
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Buffer, Kernel, Local, Store, statements
from bringup.ir.walk import bridges
from bringup.targets.c.expr import Values
from bringup.targets.c.memory import MOVE_SOME, memory_function
from bringup.targets.c.options import COptions
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


def address(memory: Buffer | Local, indices: tuple[Index, ...]) -> Index:
    """The offset of an element, in elements.

    >>> from bringup.ir.dtypes import float32
    >>> address(Local("t", float32, (2, 3)), (Int(1), Int(2)))
    Int(value=5)
    """
    strides: list[Index] = []
    if isinstance(memory, Local):
        step = 1
        for extent in reversed(memory.shape):
            strides.insert(0, Int(step))
            step *= extent
    else:
        strides = list(memory.strides)
    total: Index = Int(0)
    for index, stride in zip(indices, strides):
        total = total + index * stride
    return total


class Accesses(Values):
    """Emits loads and stores of one kernel's memory."""

    def __init__(self, kernel: Kernel, target: COptions) -> None:
        stored = frozenset(stmt.buffer for stmt in statements(kernel.body) if isinstance(stmt, Store))
        super().__init__(target, stored)
        self.kernel = kernel
        self.memories = {memory.name: memory for memory in kernel.memories}
        self.private_lanes = 1  # how many lanes have a Local of their own
        self._sites: dict[AsIndex, int] = {}

    def private(self, buffer: str) -> bool:
        """True for a Local of which each lane has its own."""
        return self.private_lanes > 1 and isinstance(self.memories[buffer], Local)

    # values taken as indices

    def bridged(self, indices: tuple[Index, ...]) -> tuple[dict[AsIndex, Value], Value | None]:
        """The places of the values that indices take as indices, and where all are in range (None: everywhere)."""
        places: dict[AsIndex, Value] = {}
        inside: Value | None = None
        for index in indices:
            for bridge in bridges(index):
                if bridge not in places:
                    places[bridge], good = self._place(bridge)
                    inside = good if inside is None else self.binary("and", inside, good, boolean)
        return places, inside

    def _place(self, bridge: AsIndex) -> tuple[Value, Value]:
        moving = self.moving(bridge.value)
        key = (bridge, None if self.active is None else self.active.text)
        if not moving:
            found, good = self.find((key, "place")), self.find((key, "good"))
            if found is not None and good is not None:
                return found, good
        value = self.value(bridge.value)
        extent, extent_depth = self.index(bridge.extent)
        depth = max(value.depth, extent_depth, self.pin, self.active.depth if self.active else 0)
        if value.kind == "u64":
            text = f"({value.text} < (uint64_t){extent})"
        else:
            low = f"-{extent}" if bridge.mode == "wrap" else "0"
            text = f"((int64_t){value.text} >= {low} && (int64_t){value.text} < {extent})"
        good = self.declare(text, "bool", 1, depth)
        if bridge.mode != "skip":
            site = self._sites.setdefault(bridge, len(self._sites) + 1)
            self.snippet("report", _REPORT)
            wrong = f"!{good.text}" + (f" && {self.active.text}" if self.active else "")
            call = f"bu_report(report, {site}, (int64_t){value.text}, {extent})"
            self.line(f"if (__builtin_expect({wrong}, 0)) {call};", depth)
        place = f"(int64_t){value.text}"
        if bridge.mode == "wrap" and value.kind != "u64":
            place = f"({place} < 0 ? {place} + {extent} : {place})"
        found = self.declare(f"({good.text} ? {place} : 0)", "i64", 1, depth)
        if not moving:
            self.stack[depth].memo[(key, "place")] = found
            self.stack[depth].memo[(key, "good")] = good
        return found, good

    @contextmanager
    def under(self, guard: Value | None) -> Iterator[None]:
        """Code that happens where a guard holds: elsewhere no index is checked."""
        before = self.active
        if guard is not None:
            self.active = guard if before is None else self.binary("and", before, guard, boolean)
        try:
            yield
        finally:
            self.active = before

    # lanes

    @contextmanager
    def each_lane(self) -> Iterator[str]:
        """A loop over the lanes that count: inside, everything is scalar."""
        vector = self.vector
        assert vector is not None
        lane, position = self.fresh("k"), self.fresh("a")
        base, _ = self.axis(vector.axis)
        with self.scope(f"for (int64_t {lane} = 0; {lane} < {vector.live}; {lane}++) {{") as inner:
            self.line(f"const int64_t {position} = {base} + {lane};")
            inner.axes[vector.axis] = position
            active = self.active
            with self.along(None, lane):
                self.active = None if active is None else self.fit(active)
                try:
                    yield lane
                finally:
                    self.active = active

    def by_lane(self, expr: Expr) -> Value:
        """A value computed one lane after the other."""
        assert self.vector is not None
        kind, lanes = kind_of(expr.dtype), self.vector.lanes
        result = self.fresh()
        self.line(f"{ctype(kind, lanes)} {result} = {{0}};")
        with self.each_lane() as lane:
            value = self.value(expr)
            self.line(f"{result}[{lane}] = {'-' if kind == 'bool' else ''}{value.text};")
        return Value(result, kind, lanes, self.depth)

    def _needs_lanes(self, indices: tuple[Index, ...], guard: Value | None) -> bool:
        """True if an access in a vector context has no vector form."""
        if self.vector is None:
            return False
        found = [bridge for index in indices for bridge in bridges(index)]
        if any(self.varies(bridge.value) for bridge in found):
            return True
        masked = (guard is not None and guard.lanes > 1) or (self.active is not None and self.active.lanes > 1)
        return masked and any(bridge.mode != "skip" for bridge in found)

    # loads

    def load(self, expr: Load) -> Value:
        """An element of memory, or ``other`` where the guard does not hold or a place is out of range."""
        memory = self.memories[expr.buffer]
        guard = None if expr.guard is None else self.value(expr.guard)
        place = address(memory, expr.indices)
        step = self.stride(place)
        if self._needs_lanes(expr.indices, guard) or step is None or (self.private(expr.buffer) and step != Int(0)):
            return self.by_lane(expr)
        with self.under(guard):
            places, inside = self.bridged(expr.indices)
        if inside is not None:
            guard = inside if guard is None else self.binary("and", guard, inside, boolean)
        other = self.value(const(0, expr.type) if expr.other is None else expr.other) if guard is not None else None
        at, depth = self.index(place, places)
        depth = max(depth, self.depth if expr.buffer in self.written else self.pin)
        if guard is not None and other is not None:
            depth = max(depth, guard.depth, other.depth)
        return self._loaded(memory, at, step, guard, other, depth)

    def _loaded(
        self, memory: Buffer | Local, at: str, step: Index, guard: Value | None, other: Value | None, depth: int
    ) -> Value:
        dtype, kind, storage = memory.dtype, kind_of(memory.dtype), storage_of(memory.dtype)
        base = f"b_{memory.name}"
        private = self.private(memory.name)
        if private and self.lane is not None:
            at = f"{at} * {self.private_lanes} + {self.lane}"
        if self.vector is None or (step == Int(0) and not private):
            text, lanes = self.from_storage(f"{base}[{at}]", dtype, 1), 1
        else:
            lanes = self.vector.lanes
            if private:
                raw = f"*(const {storage}x{lanes}_m *)({base} + {at} * {lanes})"
            elif guard is not None and guard.lanes > 1:
                mask = self.spread(guard, lanes, 32).text
                raw = self.memory("load_masked", storage, lanes, base, at, self.index(step)[0], mask, self.vector.live)
            elif step != Int(1):
                raw = self.memory("gather", storage, lanes, base, at, self.index(step)[0], self.vector.live)
            elif self.vector.count is None:
                raw = f"*(const {storage}x{lanes}_m *)({base} + {at})"
            else:
                raw = self.memory("load", storage, lanes, base, at, self.vector.live)
            text = self.from_storage(raw, dtype, lanes)
        if guard is None or other is None:
            return self.declare(text, kind, lanes, depth)
        if guard.lanes == 1:
            no = self.spread(other, max(lanes, other.lanes))
            if no.lanes > lanes:
                text = self.spread(self.declare(f"{guard.text} ? {text} : 0", kind, 1, depth), no.lanes).text
            plain = f"({no.ctype}){text}" if lanes > 1 else text  # memory's vector types are types of their own
            return self.declare(f"({guard.text} ? {plain} : {no.text})", kind, no.lanes, depth)
        if lanes == 1:  # the same element for each lane, where its guard holds
            some = self.call("any", "i32", guard.lanes, self._live_part(guard))
            loaded = self.declare(f"({some} ? {text} : 0)", kind, 1, depth)
        else:
            loaded = self.declare(text, kind, lanes, depth)
        return self.where(guard, loaded, other)

    def _live_part(self, mask: Value) -> str:
        """A mask without the lanes that do not count."""
        text = self.spread(mask, mask.lanes, 32).text
        if self.vector is None or self.vector.count is None:
            return text
        return f"({text} & {first_lanes(mask.lanes, self.vector.count)})"

    def memory(self, form: str, storage: str, lanes: int, *arguments: str) -> str:
        """A call of one of c_memory's functions."""
        if form.endswith("masked"):
            self.needs.add(("any", "i32", lanes))
        if self.target.isa.startswith("rv"):
            self.snippet("move_some", MOVE_SOME)
        self.snippet(f"{form}_{storage}x{lanes}", memory_function(form, storage, lanes))
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
            return self.call(f"from_{'f16' if dtype.name == 'float16' else 'bf16'}", "f32", lanes, text)
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
            whole = self.before_narrowing.get(value.text, value.text)
            return self.call("from_f32", "f16" if dtype.name == "float16" else "bf16", lanes, whole)
        if dtype.is_integer and dtype.bits < 32 and lanes > 1:
            return converted(value.text, value.kind, storage, lanes)
        return value.text

    # stores

    def store(self, stmt: Store) -> None:
        """A Store, with its guard and combine."""
        guard = None if stmt.guard is None else self.value(stmt.guard)
        memory = self.memories[stmt.buffer]
        place = address(memory, stmt.indices)
        step = self.stride(place)
        private = self.private(stmt.buffer)
        masked = guard is not None and guard.lanes > 1
        alone = (
            self._needs_lanes(stmt.indices, guard)
            or step is None
            or (private and (step != Int(0) or masked))
            or (masked and (stmt.combine is not None or self.raising(stmt.value)))
            or (stmt.combine is not None and (stmt.mode != "unique" or step == Int(0)) and not private)
        )
        if self.vector is not None and alone:
            with self.each_lane():
                self.store(stmt)
            return
        assert step is not None
        with self.under(guard):
            places, inside = self.bridged(stmt.indices)
        if inside is not None:
            guard = inside if guard is None else self.binary("and", guard, inside, boolean)
        with self.under(guard):
            value = self.value(stmt.value)
        at, _ = self.index(place, places)
        if guard is not None and guard.lanes == 1:
            with self.scope(f"if ({guard.text}) {{"):
                self._write(stmt, memory, at, step, value, None)
        else:
            self._write(stmt, memory, at, step, value, guard)

    def _write(
        self, stmt: Store, memory: Buffer | Local, at: str, step: Index, value: Value, mask: Value | None
    ) -> None:
        dtype, storage, base = memory.dtype, storage_of(memory.dtype), f"b_{memory.name}"
        if stmt.combine is not None:
            old = self._loaded(memory, at, step, None, None, self.depth)
            value = self.binary(stmt.combine, old, value, dtype)
        if self.vector is None:
            if self.private(memory.name) and self.lane is not None:
                at = f"{at} * {self.private_lanes} + {self.lane}"
            self.line(f"{base}[{at}] = {self.to_storage(value, dtype)};")
            return
        lanes, live = self.vector.lanes, self.vector.live
        text = self.to_storage(self.spread(value, lanes, value.mask_bits), dtype)
        if self.private(memory.name):
            self.line(f"*({storage}x{lanes}_m *)({base} + {at} * {lanes}) = {text};")
        elif mask is not None:
            where = self.spread(mask, lanes, 32).text
            steps = self.index(step)[0]
            self.line(self.memory("store_masked", storage, lanes, base, at, steps, text, where, live) + ";")
        elif step != Int(1):
            self.line(self.memory("scatter", storage, lanes, base, at, self.index(step)[0], text, live) + ";")
        elif self.vector.count is None:
            self.line(f"*({storage}x{lanes}_m *)({base} + {at}) = {text};")
        else:
            self.line(self.memory("store", storage, lanes, base, at, text, live) + ";")
