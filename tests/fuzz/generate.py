"""Makes the program of a seed, always the same one: statements are tried on the CPU, and kept where they can be judged.

Choices come from ``random.Random(seed)`` and from what torch says of shapes and dtypes, which is the same for every
version that bringup supports (tests/fuzz/test_fuzz.py compares a digest).
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import torch

from tests.fuzz.judge import Runs, Unsuitable
from tests.fuzz.program import FLOATS, INTEGERS, SIZES, Input, Program
from tests.fuzz.templates import KINDS

SHAPES: tuple[tuple[int | str, ...], ...] = (
    ("n", "m"), ("m",), ("n", 1), (1, "m"), (), (3, "n", "m"), (1,), ("n", "n"), ("m", "n"), (2, "n", 1), ("n",),
)  # fmt: skip
RARE_SHAPES: tuple[tuple[int | str, ...], ...] = ((0, "m"), ("n", 0), (33, 17), (7, 130), (1, 1))
NUMBERS = ("2", "-3", "1", "0", "0.5", "-1.5", "2.25", "0.1", "True", "1e-3", "3.0")
FEW_BITS = ("0", "1", "0.5", "-1.5", "2", "1.0", "-1")
LENGTH = 7


def make(seed: int) -> Program:
    """Returns the program of a seed."""
    choose = random.Random(seed)
    program = Program(seed, _inputs(choose), (), (), ())
    runs = [Runs(program, sizes) for sizes in SIZES]
    kinds = list(KINDS)
    weights = [weight for _, weight in KINDS.values()]
    for _ in range(4 * LENGTH):
        kind = choose.choices(kinds, weights)[0]
        line = _filled(choose.choice(KINDS[kind][0]), choose, runs[0], kind)
        if line is None:
            continue
        if kind != "in place":
            line = f"t{len([s for s in program.statements if re.match('t[0-9]+ = ', s)])} = {line}"
        longer = replace(program, statements=(*program.statements, line), kinds=(*program.kinds, kind))
        try:
            for one in runs:
                one.add(line, kind)
        except Unsuitable:
            if kind == "in place" or "_(" in line:
                runs = [Runs(program, sizes) for sizes in SIZES]
            else:
                for one in runs:
                    for space in (one.native, one.truth, one.perturbed):
                        space.pop(line.partition(" = ")[0], None)
            continue
        program = longer
        if len(program.statements) == LENGTH:
            break
    return replace(program, returned=_outputs(program, choose))


def _inputs(choose: random.Random) -> tuple[Input, ...]:
    """Floats of three shapes, now and then with infinities, integers, bools, a number with no dimensions, positions."""
    special = choose.random() < 0.05
    found = []
    for n, kind in enumerate((*FLOATS, "f32", "f32", "f32")[choose.randrange(7)] for _ in range(3)):
        shape = choose.choice(RARE_SHAPES) if choose.random() < 0.04 else choose.choice(SHAPES)
        order = "rows"
        if len(shape) > 1 and 0 not in shape and choose.random() < 0.25:
            order = choose.choice(("columns", "every other"))
        found.append(Input(f"x{n}", kind, shape, order, special and 0 not in shape))
    found.append(Input("x3", choose.choice(INTEGERS[1:]), choose.choice(SHAPES)))
    found.append(Input("x4", choose.choice(("torch.bool", *INTEGERS)), choose.choice(SHAPES[:4])))
    found.append(Input("x5", choose.choice((*FLOATS, *INTEGERS)), ()))
    return (*found, Input("p0", "torch.int64", (3,)))


def _filled(text: str, choose: random.Random, runs: Runs, kind: str) -> str | None:
    """A statement with its slots filled; None if nothing fits."""
    native = runs.native
    names = [name for name in runs.names() if name != "p0"]
    made = [name for name in names if name.startswith("t")]
    # A chain is more likely than a bush: what was made last is taken most often.
    pool = [*names, *made[-3:], *made[-3:], *made[-1:]]

    def pick(wanted: list[str], like: str | None = None) -> str | None:
        fitting = [name for name in wanted if like is None or _broadcasts(native[like], native[name])]
        return choose.choice(fitting) if fitting else None

    floats = [name for name in pool if native[name].is_floating_point()]
    integers = [name for name in pool if not native[name].is_floating_point()]
    unrounded = [name for name in pool if runs.is_unrounded(name)]
    filled: dict[str, str | None] = {}
    first: str | None = None
    for slot, wanted in (("t", pool), ("f", floats), ("e", unrounded), ("i", integers), ("a", pool)):
        if f"{{{slot}}}" in text:
            filled[slot] = pick(wanted, first)
            first = first or filled[slot]
    for slot, wanted in (("b", pool), ("c", pool), ("g", floats), ("h", unrounded), ("j", integers)):
        if f"{{{slot}}}" in text:
            filled[slot] = pick(wanted, first)
            first = first or filled[slot]
    if "{m}" in text:
        filled["m"] = pick([name for name in names if native[name].dtype == torch.bool], first)
        first = first or filled["m"]
    if "{s}" in text:
        sized = [name for name in names if native[name].dim()]
        filled["s"] = f"{choose.choice(sized)}.shape[{choose.choice((0, -1))}]" if sized else None
    if None in filled.values():
        return None
    filled["x"] = "p0"
    filled["n"], filled["q"] = choose.choice(NUMBERS), choose.choice(FEW_BITS)
    filled["k"] = choose.choice(("1", "2", "3"))
    filled["T"] = choose.choice((*FLOATS, *INTEGERS))
    filled["F"] = choose.choice((*FLOATS,))
    rank = native[first].dim() if first else 1
    filled["d"] = str(choose.choice((0, -1, *range(rank))))
    return text.format(**filled)


def _broadcasts(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(reversed(a.shape), reversed(b.shape)))


def _outputs(program: Program, choose: random.Random) -> tuple[str, ...]:
    """Every variable that no other statement uses, some others, and now and then an input or views of one thing."""
    text = "\n".join(line.partition(" = ")[2] if re.match(r"t\d+ = ", line) else line for line in program.statements)
    named = [line.partition(" = ")[0] for line in program.statements if re.match(r"t\d+ = ", line)]
    chosen = [name for name in named if not re.search(rf"\b{name}\b", text) or choose.random() < 0.3]
    last = (named or ["x0"])[-1]
    extra = choose.choice((["x0"], ["x1[..., :1]"], [last], [f"{last}[None]", f"{last}[..., None]"], [], [], [], []))
    if program.inputs[1].shape == ():
        extra = [one for one in extra if not one.startswith("x1")]
    return (*chosen, *extra) or ("x0",)
