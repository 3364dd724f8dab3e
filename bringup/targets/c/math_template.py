"""The template language of math/*.c: one text for a function gives its vector form of N lanes and its scalar form.

A definition starts with ``//! f32 f64`` (the types it serves) and a signature in type letters, on one line::

    //! f32
    F exp(F x) {
      ...
    }

Type letters: F float vector, I and U integers of its width, S its scalar, D double, J and UJ 64-bit integers, H 16-bit
patterns, v_i8 … v_f64 any type by name, all with the same number of lanes.

``name(…)`` of another definition becomes a call of it in the same type; ``D.name(…)`` in double, ``X.name(…)`` in
float, ``T.name(…)`` in the definition's own type where that is a half, ``I.name(…)`` in integers, ``F1.name(…)`` and
``D1.name(…)`` on one element.

Macros: K(c) and N(i) a constant in every lane; BITS, UBITS, FLOAT bit patterns; MASK(a < b) with all bits set, TEST(a
< b) as C has it; WIDE and CLOSE float to double and back; CONVERT(T, x); POLY(x, c0, c1, …) Horner's rule by fma;
PICK(a, b) the first for float, the second for double.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

SCALARS = {"f32": "float", "f64": "double"}
SCALARS |= {f"{sign}{bits}": f"{'u' * (sign == 'u')}int{bits}_t" for sign in "iu" for bits in (8, 16, 32, 64)}
#: The type whose arithmetic a definition for a type uses: halves compute in float32.
_COMPUTE = {"f16": "f32", "bf16": "f32"}


@dataclass(frozen=True)
class Definition:
    """One function of the library for one type, still in type letters."""

    name: str
    dtype: str
    result: str
    parameters: tuple[tuple[str, str], ...]
    body: str
    keywords: str = "static inline"
    form: str = "both"


def compute_type(dtype: str) -> str:
    """The float type that a definition's F means.

    >>> compute_type("bf16")
    'f32'
    """
    return _COMPUTE.get(dtype, dtype)


def bits_of(dtype: str) -> int:
    """The width of a short type name.

    >>> bits_of("bf16"), bits_of("u8")
    (16, 8)
    """
    return int(dtype.lstrip("bfiu"))


def c_type(dtype: str, lanes: int) -> str:
    """The C type of a short name and a lane count.

    >>> c_type("f32", 16), c_type("i64", 1)
    ('f32x16', 'int64_t')
    """
    return f"{dtype}x{lanes}" if lanes > 1 else SCALARS[dtype]


def letters(dtype: str) -> dict[str, str]:
    """What each type letter stands for in a definition for a type, as short names.

    >>> letters("f64")["I"]
    'i64'
    """
    own = compute_type(dtype)
    width = bits_of(own)
    table = {"F": own, "I": f"i{width}", "U": f"u{width}", "D": "f64", "J": "i64", "UJ": "u64", "H": "u16"}
    return table | {f"v_{name}": name for name in SCALARS}


def parse(text: str) -> list[Definition]:
    """The definitions in a template file, one for each type that it serves."""
    found = []
    for piece in re.split(r"^//! ", text, flags=re.M)[1:]:
        head, _, rest = piece.partition("\n")
        match = re.match(r"((?:static [\w()\s,]*?)?)(\w+) (\w+)\((.*?)\) \{\n", rest)
        if match is None:
            raise ValueError(f"no signature after //! {head!r}: {rest[:80]!r}")
        parameters = tuple(tuple(p.rsplit(" ", 1)) for p in match[4].split(", "))
        body = "{\n" + rest[match.end() :].rstrip() + "\n"
        body = body[: body.rindex("\n}\n") + 3]
        keywords = match[1].strip() or "static inline"
        words = head.split()
        form = words.pop(0) if words[0] in ("vector", "scalar") else "both"
        for dtype in words:
            found.append(Definition(match[3], dtype, match[2], parameters, body, keywords, form))  # type: ignore[arg-type]
    return found


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """The arguments of a macro call whose "(" is at start - 1, and the place behind its ")"."""
    depth, found, last, at = 1, [], start, start
    while depth:
        character = text[at]
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or depth == 0:
            found.append(text[last:at].strip())
            last = at + 1
        at += 1
    return found, at


def _horner(arguments: list[str]) -> str:
    variable, *coefficients = arguments
    text = f"K({coefficients[-1]})"
    for coefficient in reversed(coefficients[:-1]):
        text = f"fma({text}, {variable}, K({coefficient}))"
    return text


def _macros(dtype: str, lanes: int) -> dict[str, Callable[..., str]]:
    types = letters(dtype)
    kind = {letter: c_type(name, lanes) for letter, name in types.items()}
    scalar = {letter: c_type(name, 1) for letter, name in types.items()}
    table: dict[str, Callable[..., str]] = {
        "POLY": lambda *a: _horner(list(a)),
        "PICK": lambda single, double: single if types["F"] == "f32" else double,
    }
    if lanes > 1:
        table |= {
            "K": lambda c: f"(({scalar['F']}){c} - ({kind['F']}){{0}})",
            "N": lambda c: f"(({kind['I']}){{0}} + ({scalar['I']}){c})",
            "BITS": lambda x: f"(({kind['I']})({x}))",
            "UBITS": lambda x: f"(({kind['U']})({x}))",
            "FLOAT": lambda x: f"(({kind['F']})({x}))",
            "MASK": lambda x: f"({x})",
            "TEST": lambda x: f"({x})",
            "CONVERT": lambda t, x: f"__builtin_convertvector({x}, {kind[t]})",
            "WIDE": lambda x: f"__builtin_convertvector({x}, {kind['D']})",
            "CLOSE": lambda x: f"__builtin_convertvector({x}, {kind['F']})",
        }
        return table

    def reinterpret(source: str, target: str) -> Callable[[str], str]:
        return lambda x: f"((union {{ {scalar[source]} a; {scalar[target]} b; }}){{ .a = {x} }}).b"

    return table | {
        "K": lambda c: f"(({scalar['F']}){c})",
        "N": lambda c: f"(({scalar['I']}){c})",
        "BITS": reinterpret("F", "I"),
        "UBITS": reinterpret("F", "U"),
        "FLOAT": reinterpret("I", "F"),
        "MASK": lambda x: f"(-({scalar['I']})({x}))",
        "TEST": lambda x: f"({x})",
        "CONVERT": lambda t, x: f"(({scalar[t]})({x}))",
        "WIDE": lambda x: f"((double)({x}))",
        "CLOSE": lambda x: f"(({scalar['F']})({x}))",
    }


_MACRO = re.compile(r"\b(POLY|PICK|K|N|BITS|UBITS|FLOAT|MASK|TEST|CONVERT|WIDE|CLOSE)\(")


def _expand(text: str, table: dict[str, Callable[..., str]]) -> str:
    out, at = [], 0
    while (match := _MACRO.search(text, at)) is not None:
        out.append(text[at : match.start()])
        arguments, at = _arguments(text, match.end())
        if match[1] in ("CONVERT", "PICK"):
            arguments = [_expand(argument, table) for argument in arguments]
        elif match[1] != "POLY":
            arguments = [_expand(", ".join(arguments), table)]
        result = table[match[1]](*arguments)
        out.append(_expand(result, table) if match[1] == "POLY" else result)
    return "".join([*out, text[at:]])


def _type_names(dtype: str, lanes: int) -> dict[str, str]:
    types = letters(dtype)
    names = {letter: c_type(name, lanes) for letter, name in types.items()}
    return names | {"S": c_type(types["F"], 1)}


def function_name(op: str, dtype: str, lanes: int) -> str:
    """The C name of a function of the library.

    >>> function_name("exp", "f32", 16), function_name("from_f16", "f32", 16), function_name("exp", "f64", 1)
    ('bu_exp_f32x16', 'bu_f32x16_from_f16', 'bu_exp_f64')
    """
    suffix = f"{dtype}x{lanes}" if lanes > 1 else dtype
    return f"bu_{suffix}_{op}" if op.startswith("from_") else f"bu_{op}_{suffix}"


def widest(definition: Definition) -> int:
    """Bytes of the widest lane that a definition's types and text use."""
    text = " ".join([definition.result, definition.body, *(kind for kind, _ in definition.parameters)])
    used = set(re.findall(r"\b(?:F|I|U|D|J|UJ|H|WIDE|v_\w+)\b", text))
    types = letters(definition.dtype) | {"WIDE": "f64"}
    return max((bits_of(types[letter]) // 8 for letter in used), default=1)


def signature(definition: Definition, lanes: int) -> str:
    """The C signature of a definition."""
    names = _type_names(definition.dtype, lanes)
    parameters = ", ".join(f"{names.get(kind, kind)} {name}" for kind, name in definition.parameters)
    name = function_name(definition.name, definition.dtype, lanes)
    return f"{definition.keywords} {names.get(definition.result, definition.result)} {name}({parameters})"


def instantiate(
    definition: Definition, lanes: int, known: Callable[[str, str], bool]
) -> tuple[str, set[tuple[str, str, int]]]:
    """The C text of a definition for a number of lanes, and the functions it calls."""
    names = _type_names(definition.dtype, lanes)
    compute = compute_type(definition.dtype)
    owners = {"D.": "f64", "D1.": "f64", "X.": "f32", "T.": definition.dtype, "I.": letters(definition.dtype)["I"]}
    calls: set[tuple[str, str, int]] = set()
    body = _expand(definition.body, _macros(definition.dtype, lanes))

    def call(match: re.Match[str]) -> str:
        one = match[1] in ("D1.", "F1.")
        dtype = owners.get(match[1] or "", compute)
        if not known(match[2], dtype):
            if match[1]:
                raise ValueError(f"{definition.name} calls the unknown {match[0]!r} in {dtype}")
            return match[0]
        calls.add((match[2], dtype, 1 if one else lanes))
        return function_name(match[2], dtype, 1 if one else lanes) + "("

    body = re.sub(r"\b((?:D|D1|F1|X|T|I)\.)?([a-z]\w*)\(", call, body)
    body = re.sub(r"\b(?:F|I|U|D|J|UJ|H|S|v_\w+)\b(?!\.)", lambda m: names.get(m[0], m[0]), body)
    body = body.replace("LANES", str(lanes))
    return f"{signature(definition, lanes)} {body}", calls


def split(definition: Definition, lanes: int) -> tuple[str, set[tuple[str, str, int]]]:
    """A definition for vectors wider than the machine's: two calls with half the lanes."""
    half = lanes // 2
    whole_names, half_names = _type_names(definition.dtype, lanes), _type_names(definition.dtype, half)
    lines, arguments = [], []
    for kind, name in definition.parameters:
        lines.append(f"  union {{ {whole_names[kind]} whole; {half_names[kind]} half[2]; }} {name}_ = {{ {name} }};")
        arguments.append(f"{name}_.half[{{0}}]")
    call = f"{function_name(definition.name, definition.dtype, half)}({', '.join(arguments)})"
    if definition.result == "int":
        lines.append(f"  return {call.format(0)} | {call.format(1)};")
    else:
        kinds = f"{whole_names[definition.result]} whole; {half_names[definition.result]} half[2];"
        lines.append(f"  union {{ {kinds} }} result = {{ .half = {{ {call.format(0)}, {call.format(1)} }} }};")
        lines.append("  return result.whole;")
    text = "\n".join([signature(definition, lanes) + " {", *lines, "}", ""])
    return text, {(definition.name, definition.dtype, half)}
