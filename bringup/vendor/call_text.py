"""The text of a vendor call, ``cblas_sgemm(101, …, {self}, {self.ld}, …)``, taken apart; and C prototypes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bringup.vendor.formula import Formula, FormulaError, read

#: How the generated C names the elements of each dtype; halves are bits to it.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])")
_PROTOTYPE = re.compile(r"(\w+)\s*\(([^()]*)\)\s*(?:;|$)")


@dataclass(frozen=True)
class CallText:
    """C text with formulas in between: ``parts`` are text and Formula in turn."""

    parts: tuple[str | Formula, ...]

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """The formulas, each once, in order."""
        return tuple(dict.fromkeys(part for part in self.parts if isinstance(part, Formula)))

    @property
    def names(self) -> frozenset[str]:
        """The arguments that the call uses."""
        return frozenset(name for formula in self.formulas for name in formula.names)

    def fill(self, words: dict[str, str]) -> str:
        """The C text with a word for each formula.

        >>> read_call("f({n + 1})", {"n"}).fill({"n + 1": "a0"})
        'f(a0)'
        """
        return "".join(words[part.text] if isinstance(part, Formula) else part for part in self.parts)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The functions that are called.

        >>> read_call("setup(); f(sizeof(int), {n})", {"n"}).symbols
        ('setup', 'f')
        """
        text = "".join("0" if isinstance(part, Formula) else part for part in self.parts)
        names = re.findall(r"\b([A-Za-z_]\w*)\s*\(", text)
        keywords = {"sizeof", "if", "for", "while", "switch", "return", "defined"}
        return tuple(dict.fromkeys(name for name in names if name not in keywords))

    def arguments(self, symbol: str) -> list[list[str | Formula]]:
        """The arguments of the first call of a function, each as its parts.

        >>> [len(argument) for argument in read_call("f(101, {n}, {n} + 1)", {"n"}).arguments("f")]
        [1, 1, 2]
        """
        found: list[list[str | Formula]] = []
        depth = 0
        for part in self.parts:
            if isinstance(part, Formula):
                if depth:
                    found[-1].append(part)
                continue
            at = 0
            if not depth and not found:
                start = re.search(rf"\b{symbol}\s*\(", part)
                if start is None:
                    continue
                at, depth = start.end(), 1
                found.append([])
            for character in part[at:] if depth else "":
                depth += {"(": 1, ")": -1}.get(character, 0)
                if not depth:
                    break
                if character == "," and depth == 1:
                    found.append([])
                elif found[-1] and isinstance(found[-1][-1], str):
                    found[-1][-1] += character
                else:
                    found[-1].append(character)
        stripped = [[p.strip() if isinstance(p, str) else p for p in argument] for argument in found]
        return [[part for part in argument if part != ""] for argument in stripped]


def read_call(text: str, names: Sequence[str] | set[str]) -> CallText:
    """Reads a call over some arguments; FormulaError says what is wrong with it. ``{{`` is a brace of C.

    >>> read_call("f({x}, {x.shape[0]})", {"x"}).parts[0]
    'f('
    """
    parts: list[str | Formula] = []
    at = 0
    plain = ""
    for hole in _HOLE.finditer(text):
        plain += text[at : hole.start()]
        at = hole.end()
        if hole.group() in ("{{", "}}"):
            plain += hole.group()[0]
        elif hole[2]:
            raise FormulaError(f"{text!r}: a brace at {hole.start()} has no partner (a brace of C is written twice)")
        else:
            parts += [plain, read(hole[1], names)]
            plain = ""
    return CallText((*parts, plain + text[at:]))


def prototypes(declare: str) -> dict[str, list[str]]:
    """The functions that a C text declares: name → parameters as written.

    >>> prototypes("void f(int n, const float *x); int g(void);")
    {'f': ['int n', 'const float *x'], 'g': []}
    """
    found = {}
    for name, parameters in _PROTOTYPE.findall(re.sub(r"/\*.*?\*/", " ", declare, flags=re.DOTALL)):
        listed = [" ".join(parameter.split()) for parameter in parameters.split(",")]
        found[name] = [] if listed in (["void"], [""]) else listed
    return found


def is_narrow(parameter: str) -> bool:
    """True for a C parameter that holds 32 bits or fewer of an integer: a larger size must not reach it.

    >>> is_narrow("int n"), is_narrow("const int64_t n"), is_narrow("int *n")
    (True, False, False)
    """
    words = parameter.replace("*", " * ").split()
    narrow = {"int", "int32_t", "unsigned", "uint32_t", "short", "int16_t", "blasint", "enum", "int8_t", "char"}
    return "*" not in words and bool(narrow & set(words)) and "long" not in words
