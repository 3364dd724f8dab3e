"""A model as a folder that builds with ``make`` and runs with ``make run``: no Python, no libc, no bringup needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bringup.graph.bare_metal.build import Sizes, check_fits, code_bytes, model_files, needed_bytes, sizes_of
from bringup.graph.bare_metal.guest import memory_of
from bringup.graph.bare_metal.options import BareMetal, parse_bytes
from bringup.graph.bare_metal.project_main import main_source
from bringup.graph.bare_metal.sources import Model
from bringup.riscv import runtime
from bringup.riscv.toolchain import CORES, FLAGS


def write_project(model: Model, options: BareMetal, folder: Path, examples: Sequence[npt.NDArray[Any]]) -> None:
    """Writes the folder; ``examples`` are the inputs that its main runs the model on."""
    inputs = [memory_of(array, spec.strides, spec.elements) for array, spec in zip(examples, model.program.inputs)]
    spec = options.spec(needed_bytes(model) + sum(map(len, inputs)))
    files: dict[str, str | bytes] = {
        **model_files(model),
        "main.c": main_source(model),
        f"{model.name}_inputs.bin": b"".join(data + b"\0" * (-len(data) % 64) for data in inputs) or b"\0",
        f"{model.name}.ld": runtime.link_script(spec, options.stack_bytes) + _limits(model.name, options),
        "crt0.S": runtime.crt0(),
        "memory.c": runtime.memory_functions(),
    }
    if "d" not in spec.extensions:
        files["square_root.c"] = runtime.square_root()
    limited = parse_bytes(options.ram) or parse_bytes(options.flash)
    code = code_bytes({**model_files(model, notes=False), **_program(files)}, spec, options) if limited else None
    sizes = sizes_of(model, code, options.stack_bytes)
    check_fits(sizes, options)  # the linker checks it again
    files["Makefile"] = makefile(model, options, spec.ram_bytes, sizes)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


def _program(files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    """What a program has beside its model."""
    return {name: text for name, text in files.items() if name == "main.c" or name.endswith("_inputs.bin")}


def _limits(name: str, options: BareMetal) -> str:
    """What makes the linker fail when the program does not fit."""
    flash, ram = parse_bytes(options.flash), parse_bytes(options.ram)
    lines = []
    if flash:
        used = "SIZEOF(.start) + SIZEOF(.text) + SIZEOF(.rodata) + SIZEOF(.data)"
        lines.append(f'ASSERT({used} <= {flash}, "{name} needs more than {flash} bytes of flash")\n')
    if ram:
        used = "SIZEOF(.data) + SIZEOF(.bss) + SIZEOF(.stack)"
        lines.append(f'ASSERT({used} <= {ram}, "{name} needs more than {ram} bytes of RAM")\n')
    return "".join(lines)


def makefile(model: Model, options: BareMetal, ram: int, sizes: Sizes) -> str:
    """How to build it with gcc, clang or zig, what it needs, and how to run it, in QEMU or in our own emulator."""
    name, isa = model.name, options.chosen_isa
    zig, features, march, abi = CORES[isa]
    half = ",Zfh=true" if isa.endswith("_zfh") else ""
    cpu = isa[:4] + half + (f",v=true,vlen={options.vector or 128},elen=64,vext_spec=v1.0" if isa.endswith("v") else "")
    vector = f" {name}_vector.S" if model.kernels.assembly else ""
    roots = " square_root.c" if isa.startswith("rv32") else ""
    letters = f"-march={march.partition('_')[0]}"  # with more, gcc names the library of another core
    return f"""# {name} for {isa}. With another compiler:
#   make CROSS_COMPILE=riscv64-unknown-elf-                   gcc (the default, where it is)
#   make CC="clang --target={zig}-unknown-elf -fuse-ld=lld"
#   make CC="python3 -m ziglang cc"                           clang, from pip install ziglang (the default elsewhere)
CROSS_COMPILE ?= riscv64-unknown-elf-
PYTHON ?= python3
ifeq ($(origin CC),default)
CC := $(if $(shell command -v $(CROSS_COMPILE)gcc),$(CROSS_COMPILE)gcc,$(PYTHON) -m ziglang cc)
endif
ifneq ($(findstring zig,$(CC)),)
CORE := -target {zig}-freestanding-none -mcpu={features} -mabi={abi} -fno-sanitize=all
LIBRARIES := -nostdlib{" -rtlib=compiler-rt" * isa.startswith("rv32")}
else
CORE := -march={march} -mabi={abi}
LIBRARIES := -nostdlib $(if $(findstring gcc,$(CC)),$(shell $(CC) {letters} -mabi={abi} -print-libgcc-file-name))
endif
FLAGS := {" ".join(FLAGS)} -ffunction-sections -Wall -Wextra
QEMU ?= qemu-system-{zig}
SOURCES := {name}.c {name}_weights.c{vector} main.c memory.c{roots} crt0.S

.PHONY: all run clean
all: {name}.elf

{name}.elf: $(SOURCES) {name}.h {name}.ld {name}_weights.bin {name}_inputs.bin
	$(CC) $(CORE) $(FLAGS) $(CFLAGS) -static $(SOURCES) $(LIBRARIES) -Wl,-T,{name}.ld -Wl,--gc-sections -o $@
	@echo "{sizes.words()}"

run: {name}.elf
	@command -v $(QEMU) >/dev/null || \\
	{{ echo "$(QEMU) is not here (Debian: qemu-system-misc); without it: bringup riscv run {name}.elf"; exit 1; }}
	$(QEMU) -M virt -m {max(ram >> 20, 8)}M -cpu {cpu} -bios none -kernel $< -icount shift=0 \
	-display none -monitor none -serial stdio

clean:
	rm -f {name}.elf
"""
