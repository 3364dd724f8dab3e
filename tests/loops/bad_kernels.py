"""Kernels that are wrong in one way each, with the rule that the verifier must name: what keeps the verifier honest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bringup.ir.dtypes import float32, int32
from bringup.ir.expr import Load, Name, const
from bringup.ir.index import AxisVar, Size
from bringup.ir.kernel import Axis, Kernel, Let, Local, Stmt, Store
from bringup.ir.parser import parse


@dataclass(frozen=True)
class BadKernel:
    """A wrong kernel, the rule it breaks, and what was done to it."""

    kernel: Kernel
    rule: str
    what: str


_HEAD = """kernel bad
  size n
  size m: 1..64
  param p: float32
  in x: float32[n, m] strides [m, 1]
  in k: int64[n] strides [1]
  out y: float32[n, m] strides [m, 1]
  inout z: float32[n] strides [1]
  local s: float32[64]
  grid i < n
  {
"""
_FILL = "loop f < m parallel { store y[i, f] = x[i, f] }"
_SUM = "reduce (t) over j < m lanes 32 { init (float32(0.0)) value (x[i, j]) combine (a), (b) -> ((a + b)) }"

#: (rule, what is wrong, body); the body follows _HEAD.
_BODIES = [
    ("bounds", "reads one past the end", "loop j < m parallel { store y[i, j] = x[i, j + 1] }"),
    ("bounds", "reads one before the start", "loop j < m parallel { store y[i, j] = x[i, j - 1] }"),
    ("bounds", "rows and columns swapped", "loop j < m parallel { store y[i, j] = x[j, i] }"),
    ("bounds", "stores past the end", "loop j < m parallel { store y[i, j + i] = p }"),
    (
        "bounds",
        "the guard is one too wide",
        "loop j < m parallel { store y[i, j] = (x[i, j + 1] if (index(j) < index(m))) }",
    ),
    (
        "bounds",
        "a guard about another axis",
        "loop j < m parallel { store y[i, j] = (x[i, j + 1] if (index(i + 1) < index(m))) }",
    ),
    ("bounds", "a divisor that may be 0", "loop j < m parallel { store y[i, (j % (n - 1))] = p }"),
    ("bounds", "a gather checked against the wrong extent", "store z[i] = x[i, asindex(k[i], m + 1, check)]"),
    ("bounds", "a Local shorter than the loop", "loop j < n parallel { store s[j] = p }"),
    ("bounds", "a padded load of dimension n guarded by m", "store z[i] = (x[i + 1, 0] if (index(i + 1) < index(m)))"),
    ("shape", "too few indices", "store z[i] = x[i]"),
    ("shape", "too many indices", "store z[i, i] = p"),
    ("type", "float plus int", "store z[i] = (x[i, 0] + k[i])"),
    ("type", "an int stored to a float buffer", "store z[i] = k[i]"),
    ("type", "exp of an integer", "store z[i] = float32(exp(k[i]))"),
    ("type", "shift of a float", "store z[i] = shl(p, p)"),
    ("type", "a float condition", "store z[i] = where(p, p, p)"),
    ("type", "branches of two types", "store z[i] = where((p < p), p, float64(p))"),
    ("type", "bits of another size", "store z[i] = float32(bits_int64(z[i]))"),
    ("type", "an fma of integers", "store z[i] = float32(fma(k[i], k[i], k[i]))"),
    ("type", "asindex of a float", "store z[i] = x[i, asindex(p, m, check)]"),
    ("type", "philox with an int64 seed", "store z[i] = float32(philox32(k[i], uint64(0), uint64(0)))"),
    ("type", "a guard that is not a bool", "store z[i] = p if p"),
    ("type", "other of another type", "store z[i] = (x[i, 0] if (p < p) else int64(0))"),
    ("type", "contract of two types", "contract c over j < m lanes 1 = x[i, j] by k[i] store z[i] = c"),
    ("type", "contract with a wrong init", "contract c over j < m lanes 1 = x[i, j] by p from k[i] store z[i] = c"),
    (
        "type",
        "a value of another type than its init",
        "reduce (t) over j < m lanes 1 { init (float64(0.0)) "
        "value (x[i, j]) combine (a), (b) -> ((a + b)) } store z[i] = p",
    ),
    ("type", "a count that is not an int64", "loop j < m until p carry (c) from (p) { next (c) } store z[i] = c"),
    ("count", "a parallel loop that ends early", "loop j < m parallel until k[i] { store y[i, j] = p }"),
    ("scope", "a count of the loop's own axis", "loop j < m until index(j) { store y[i, j] = p }"),
    ("type", "an update of another type", "loop j < m carry (c) from (p) { next (float64(c)) } store z[i] = c"),
    (
        "combine",
        "a combine that loads",
        "reduce (t) over j < m lanes 32 { init (p) value (p) combine (a), (b) -> ((a + z[0])) } store z[i] = t",
    ),
    (
        "combine",
        "a combine that uses an outer name",
        "let q = p reduce (t) over j < m lanes 32 { init (p) value (p) combine (a), (b) -> ((a + q)) } store z[i] = t",
    ),
    (
        "combine",
        "a combine of another type",
        "reduce (t) over j < m lanes 32 { init (p) value (p) combine (a), (b) -> (float64(a)) } store z[i] = t",
    ),
    (
        "combine",
        "a tuple of two and one",
        "reduce (t, u) over j < m lanes 32 { init (p) value (p) combine (a), (b) -> (a) } store z[i] = t",
    ),
    (
        "combine",
        "a combine that knows its axis",
        "reduce (t) over j < m lanes 32 { init (p) value (p) "
        "combine (a), (b) -> ((a + float32(index(j)))) } store z[i] = t",
    ),
    ("lanes", "lanes that are not a power of two", _SUM.replace("lanes 32", "lanes 12") + " store z[i] = t"),
    ("lanes", "no lanes", _SUM.replace("lanes 32", "lanes 0") + " store z[i] = t"),
    ("conflict", "all steps store to one element", "loop j < m parallel { store z[i] = x[i, j] }"),
    ("conflict", "grid points share an element", "store z[0] = x[i, 0]"),
    ("conflict", "neighbours overlap", "loop j < m parallel { store y[i, (j // 2)] = p }"),
    ("conflict", "a scatter without a mode", "store z[asindex(k[i], n, check)] = p"),
    ("conflict", "a rotation that forgets a case", "store z[(min(i, 3) % n)] = p"),
    ("conflict", "reads what its neighbour writes", "store z[i] = z[(n - 1 - i)]"),
    ("conflict", "two stores that meet", "store z[i] = p store z[(n - 1 - i)] = p"),
    ("conflict", "a Local raced by a parallel loop", "loop j < m parallel { store s[j] = p store y[i, j] = s[0] }"),
    ("conflict", "a Local written by all steps", "loop j < m parallel { store s[0] = p }"),
    ("conflict", "an ordered store next to a read", "store ordered add z[asindex(k[i], n, check)] = z[i]"),
    ("mode", "atomic without a combine", "store atomic z[asindex(k[i], n, check)] = p"),
    ("mode", "skip where nothing can be skipped", "store z[i] = float32(index(asindex(k[i], n, skip)))"),
    ("mode", "other without a guard", "store z[i] = (x[i, 0] else p)"),
    ("role", "a store to an input", "loop j < m parallel { store x[i, j] = p }"),
    ("role", "a combining store to an output", "loop j < m parallel { store add y[i, j] = p }"),
    ("role", "an output that is never written", "store z[i] = p"),
    ("read", "an output read before it is written", "store z[i] = y[i, 0]"),
    ("read", "a Local read before it is written", "store z[i] = s[0]"),
    ("name", "a name bound twice", "let q = p let q = p store z[i] = q"),
    ("name", "an axis of a taken name", "loop i < m parallel { store y[i, i] = p }"),
    ("name", "a name that is a word of the language", "let exp = p store z[i] = p"),
    ("scope", "a size that is not declared", "store z[i] = float32(index(q))"),
    ("scope", "an extent that is not declared", "loop j < q parallel { store y[i, j] = p }"),
    ("scope", "asindex with an extent that moves", "store z[i] = x[asindex(k[i], i + 1, check), 0]"),
]


def bad_kernels() -> Iterator[BadKernel]:
    """Every wrong kernel. The good part of each stores what the rule at hand does not concern.

    >>> next(bad_kernels()).rule
    'bounds'
    """
    for rule, what, body in _BODIES:
        fill = "" if "store y" in body or "never written" in what or rule == "read" else _FILL
        yield BadKernel(parse(f"{_HEAD}{body} {fill} }}"), rule, what)
    good = parse(f"{_HEAD}store z[i] = p {_FILL} }}")
    i = AxisVar("i")
    last = good.body[1:]
    tests: list[tuple[str, str, Stmt]] = [
        ("undefined", "a name that nothing binds", Let("q", Name("nowhere", float32))),
        ("type", "a name of another type", Store("z", (i,), Name("p2", int32))),
        ("type", "a load of another type", Let("q", Load("x", (i, i * 0), int32))),
        ("scope", "a buffer that is not declared", Store("w", (i,), const(0.0, float32))),
        ("scope", "an axis that is not open", Store("z", (AxisVar("j"),), const(0.0, float32))),
        ("mode", "a mode that does not exist", Store("z", (i,), const(0.0, float32), "maybe")),  # type: ignore[arg-type]
        ("mode", "a combine that does not exist", Store("z", (i,), const(0.0, float32), combine="sub")),
    ]
    for rule, what, stmt in tests:
        first = Let("p2", const(0.0, float32))
        yield BadKernel(replace(good, body=(first, stmt, *last)), rule, what)
    yield BadKernel(replace(good, axes=(Axis("i", Size("n"), "sequential"),)), "axis", "a sequential grid")
    yield BadKernel(replace(good, locals=(Local("s", float32, (1 << 20,)),)), "local", "a Local of 4 MiB")
    yield BadKernel(replace(good, locals=(Local("s", float32, (0,)),)), "local", "a Local without elements")
    x = good.buffers[0]
    yield BadKernel(replace(good, buffers=(replace(x, strides=()), *good.buffers[1:])), "shape", "strides are missing")
