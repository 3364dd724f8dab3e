"""The ctypes mirror equals driver.h."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from bringup.driver import CopyKind, EventFlags, HostFlags, PlacementKind, Reduction, TraceKind, c_functions
from bringup.driver import c_struct as abi
from tests.c_compiler import INCLUDE, compile_c

HEADER = (INCLUDE / "bringup" / "driver.h").read_text()


# ---- the mirror ----
STRUCTS = {
    "bringup_placement": abi.PlacementStruct,
    "bringup_device_spec": abi.DeviceSpecStruct,
    "bringup_launch": abi.LaunchStruct,
    "bringup_tensor": abi.TensorStruct,
    "bringup_value": abi.ValueStruct,
    "bringup_call": abi.CallStruct,
    "bringup_library_op": abi.LibraryOpStruct,
    "bringup_trace_record": abi.TraceRecordStruct,
    "bringup_clock_pair": abi.ClockPairStruct,
    "bringup_driver": c_functions.DriverStruct,
}


def test_layout_equals_the_header(tmp_path: Path) -> None:
    lines = []
    for c_name, mirror in STRUCTS.items():
        lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
        for field in mirror._fields_:
            at = f"offsetof({c_name}, {field[0]}), sizeof((({c_name} *)0)->{field[0]})"
            lines.append(f'printf("{c_name}.{field[0]} %zu %zu\\n", {at});')
    program = compile_c(
        tmp_path,
        "#include <stddef.h>\n#include <stdio.h>\n#include <bringup/driver.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0; }\n",
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")
    expected = []
    for c_name, mirror in STRUCTS.items():
        expected.append(f"{c_name} {ctypes.sizeof(mirror)}")
        for field in mirror._fields_:
            descriptor = getattr(mirror, field[0])
            expected.append(f"{c_name}.{field[0]} {descriptor.offset} {descriptor.size}")
    assert printed[:-1] == expected


def c_kind(argument: str) -> str:
    """int32 … for a number, "pointer" for anything with a star."""
    if "*" in argument:
        return "pointer"
    return re.sub(r"_t$", "", argument.replace("const ", "").split()[0])


def test_every_field_and_signature_is_mirrored() -> None:
    header = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    for c_name, mirror in STRUCTS.items():
        body = re.search(rf"typedef struct {c_name} {{(.*?)}} {c_name};", header, re.S)
        assert body
        names = []
        for declaration in body.group(1).split(";"):
            found = re.search(r"\(\*(\w+)\)", declaration) or re.search(r"(\w+)(?:\[\d+\])?\s*$", declaration)
            names += [found.group(1)] if found else []
        assert names == [field[0] for field in mirror._fields_]
    kinds = {"i": "int32", "l": "int64", "I": "uint32", "L": "uint64", "d": "double", "q": "int64", "Q": "uint64"}
    driver = re.search(r"typedef struct bringup_driver {(.*?)} bringup_driver;", header, re.S)
    assert driver
    for name, function in c_functions.FUNCTIONS.items():
        found = re.search(rf"(\w+) \(\*{name}\)\((.*?)\);", driver.group(1), re.S)
        assert found, name
        arguments = re.sub(r"\((\*+)\w+\)\([^)]*\)", r"\1", found.group(2))  # callbacks: only their stars matter
        mirrored = [
            kinds.get(getattr(t, "_type_", ""), "pointer") if isinstance(getattr(t, "_type_", None), str) else "pointer"
            for t in function._argtypes_
        ]
        assert [c_kind(a) for a in arguments.split(",")] == mirrored, name
        assert (found.group(1) == "void") == (function._restype_ is None)


def test_constants_equal_the_header() -> None:
    assert f"#define BRINGUP_ABI_VERSION {abi.ABI_VERSION}u" in HEADER
    for name in ("OK", "ERROR", "OUT_OF_MEMORY", "INVALID", "UNSUPPORTED", "ABSENT", "INDEX_ERROR", "DEVICE_LOST"):
        assert re.search(rf"\bBRINGUP_{name} = {getattr(abi, name)}\b", HEADER), name
    for enumeration in (CopyKind, PlacementKind, Reduction):
        for member in enumeration:
            assert re.search(rf"\bBRINGUP_{member.name} = {member.value}\b", HEADER), member
    prefixes = {HostFlags: "HOST_", EventFlags: "EVENT_", TraceKind: "TRACE_"}
    for flags, prefix in prefixes.items():
        for member in flags:
            assert re.search(rf"\bBRINGUP_{prefix}{member.name} = {member.value}\b", HEADER), member
    for bit, dtype in enumerate(abi.DTYPES):
        assert re.search(rf"\bBRINGUP_{dtype.upper()} = {bit}\b", HEADER), dtype
