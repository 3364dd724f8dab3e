"""Which route every ATen overload takes on a device, read from the registry that PyTorch dispatches with.

library         the chip's own library, or ATen's CPU kernels on its memory (sim in library mode)
kernel          a kernel compiled from its lowering (or an in-place or out= form of one)
native          written for the device: views, copies, factories, ops made of other ops where data decide the size
decomposition   PyTorch composes it of other ops
fallback        runs on the CPU, counted by the ledger
error           has no kernel anywhere
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ROUTES = ("library", "kernel", "native", "decomposition", "fallback", "error")
NATIVE = ("library", "kernel", "native")
MISSING = ("fallback", "error")


def base_of(overload: str) -> str:
    """The op without overload and in-place underscore.

    >>> base_of("aten::add_.Tensor"), base_of("aten::__ilshift__.Scalar")
    ('aten::add', 'aten::__ilshift__')
    """
    name = overload.partition(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@dataclass(frozen=True)
class OpRow:
    """One overload and its route."""

    overload: str
    route: str

    @property
    def base(self) -> str:
        """The op it belongs to."""
        return base_of(self.overload)


@dataclass(frozen=True)
class OpTable:
    """The overloads of a device, sorted by op, and the ops that have a lowering of their own."""

    device: str
    rows: Sequence[OpRow]
    lowered: Collection[str]
    #: Overload → file, line and kind of each definition that it has here.
    places: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def by_route(self) -> dict[str, int]:
        """How many overloads take each route; routes without any are left out."""
        counted = Counter(row.route for row in self.rows)
        return {route: counted[route] for route in ROUTES if counted[route]}

    @property
    def native(self) -> int:
        """Overloads that run on the device as themselves: decompositions and fallbacks are not among them."""
        return sum(self.by_route.get(route, 0) for route in NATIVE)

    def where(self, base: str) -> str:
        """Where an op is defined: file, line and kind of each definition."""
        found = [place for overload, places in self.places.items() if base_of(overload) == base for place in places]
        return "\n".join(dict.fromkeys(found))

    def only(self, routes: Collection[str]) -> list[OpRow]:
        """The rows of some routes."""
        return [row for row in self.rows if row.route in routes]


def named_rows(
    routes: Mapping[str, str], host_library: bool, kernels: bool, own: Mapping[str, str] | None = None
) -> list[OpRow]:
    """The core's routes of ATen overloads in the words of this table, sorted by op.

    ``host_library``: the device has ATen's CPU kernels as its library; ``kernels``: it runs kernels. ``own``: what was
    registered in Python, of which the core does not know.

    >>> named_rows({"aten::sort": "library", "aten::exp": "kernel"}, host_library=False, kernels=True)
    [OpRow(overload='aten::exp', route='kernel'), OpRow(overload='aten::sort', route='fallback')]
    """
    cpu = "library" if host_library else "fallback"
    words = {"library": cpu, "composite": "decomposition", "random": "native", "kernel": "kernel" if kernels else cpu}
    found = {name: words.get(route, route) for name, route in routes.items() if name.startswith("aten::")}
    found.update({name: route for name, route in (own or {}).items() if name in found})
    return sorted((OpRow(*item) for item in found.items()), key=lambda row: (row.base, row.overload))


def lowered_ops(definitions: Iterable[str]) -> set[str]:
    """The ATen ops among the overloads that have a definition.

    >>> lowered_ops(["aten::add.Tensor", "aten::add.Scalar", "bringup::attention"])
    {'aten::add'}
    """
    return {base_of(name) for name in definitions if name.startswith("aten::")}


def routes() -> dict[str, str]:
    """Every ATen op on the device: name with overload → library | native | kernel | composite | error."""
    from torch._C import _dispatch_get_all_op_names, _dispatch_has_kernel_for_dispatch_key

    from bringup import _C

    found = dict(_C.routes())
    composites = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    for name in _dispatch_get_all_op_names():
        if not name.startswith("aten::") or name in found:
            continue
        if _dispatch_has_kernel_for_dispatch_key(name, "CPU"):  # the backend fallback serves it
            found[name] = "library"
        else:
            composed = any(_dispatch_has_kernel_for_dispatch_key(name, key) for key in composites)
            found[name] = "composite" if composed else "error"
    return found


def device_table(index: int) -> OpTable:
    """The table of a device of the active drivers; opens it."""
    from bringup import _C
    from bringup.driver import in_use
    from bringup.driver.c_struct import DeviceSpecStruct
    from bringup.lowering.install import compiler_for

    spec = DeviceSpecStruct.from_buffer_copy(_C.device_spec(index))  # opens it: kernels are registered on first use
    kernels = compiler_for(index) is not None
    lowered: set[str] = set()
    own: dict[str, str] = {}
    places: dict[str, list[str]] = {}
    if kernels:
        from bringup.lowering.composed import COMPOSED, registered
        from bringup.lowering.registry import LOWERINGS

        lowered, places = lowered_ops(LOWERINGS), definition_places()
        if registered():
            own.update(dict.fromkeys(COMPOSED, "native"))
    own.update(dict.fromkeys(_library_overloads(index), "library"))
    rows = named_rows(routes(), bool(spec.host_library), kernels, own)
    return OpTable(f"{in_use.device_type()}:{index}", rows, lowered, places)


def definition_places() -> dict[str, list[str]]:
    """Overload → file, line and kind of each of its definitions, those of graphs included."""
    import bringup.graph.export.decompositions  # and those of all graphs
    import bringup.graph.graph_ops  # noqa: F401
    from bringup.lowering import ops
    from bringup.lowering.registry import DEFINITIONS

    ops.load()
    places: dict[str, list[str]] = {}
    for one in DEFINITIONS.values():
        short = one.place.removeprefix("bringup/").removeprefix("lowering/")
        places.setdefault(one.overload, []).append(f"{short} ({one.kind})")
    return places


def _library_overloads(index: int) -> list[str]:
    """The overloads behind which the driver has put functions of its own: ``Driver.ops`` and its op table."""
    from bringup.driver import in_use
    from bringup.vendor.install import active_tables
    from bringup.vendor.op_lookup import find_overload, in_place_form, out_form

    active = in_use.driver_of(index)
    entries = active_tables().entries.get(active.name, ())
    found = []
    for name in [*active.driver.ops, *(bound.op for bound in entries)]:
        op = find_overload(name)
        forms = [op, out_form(op), in_place_form(op)]
        found += [
            form._schema.name + (f".{form._schema.overload_name}" * bool(form._schema.overload_name))
            for form in forms
            if form is not None
        ]
    return found


def grouped(rows: Iterable[OpRow]) -> list[tuple[str, str, str]]:
    """(op, route, overloads) with one line per op and route; an overload without a name is called default.

    >>> grouped([OpRow("aten::exp", "kernel"), OpRow("aten::exp.out", "kernel"), OpRow("aten::exp_", "kernel")])
    [('exp', 'kernel', 'default, out, in-place')]
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        base = row.base.removeprefix("aten::")
        name, _, overload = row.overload.removeprefix("aten::").partition(".")
        word = overload or "default" if name == base else f"in-place {overload}".rstrip()
        groups.setdefault((base, row.route), []).append(word)
    return [(base, route, ", ".join(words)) for (base, route), words in groups.items()]


def summary_lines(table: OpTable) -> list[str]:
    """What the table says in all."""
    counts = ", ".join(f"{count} {route}" for route, count in table.by_route.items())
    return [
        f"{len(table.rows)} overloads of {len({row.base for row in table.rows})} ops: {counts}",
        f"{len(table.lowered)} distinct ops have a lowering of their own",
        f"{table.native} overloads run on the device as themselves (library, kernel or native)",
    ]


def markdown(table: OpTable, command: str, torch_version: str) -> str:
    """The page docs/ops.md."""
    lines = [
        "# Ops by route",
        "",
        f"Written by `make docs` (`{command}`, torch {torch_version}) from the registry that PyTorch dispatches with:",
        "do not edit. [kernels.md](kernels.md) says what the routes are.",
        "",
        "| route | overloads |",
        "|---|---|",
        *[f"| {route} | {count} |" for route, count in table.by_route.items()],
        "",
        f"- {len(table.lowered)} distinct ops have a lowering of their own.",
        f"- {table.native} overloads run on the device as themselves (library, kernel or native).",
        "",
        "## Ops with a lowering",
        "",
        ", ".join(f"`{name.removeprefix('aten::')}`" for name in sorted(table.lowered)),
        "",
        "## All overloads",
        "",
        "| op | route | overloads |",
        "|---|---|---|",
        *[f"| {' | '.join(group)} |" for group in grouped(table.rows)],
    ]
    return "\n".join(lines) + "\n"
