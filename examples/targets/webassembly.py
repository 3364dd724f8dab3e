"""A second language for kernels: loop IR → WebAssembly text, and a chip that runs it with wasmtime.

BRINGUP_DRIVERS=examples/targets/webassembly.py python -c "import torch; print(torch.ones(3, device='wasm').exp())"

The chip has a memory of its own that the host cannot see: the linear memory of a WebAssembly store. Its first MiB holds
the arguments of a launch, the report of a failed index check, and the scratch of kernels. What has no code here (half
types, random numbers, sines) raises CannotRender: the op falls back to the CPU, and ``bringup.fallbacks()`` says so.
"""

import ctypes
import threading
from dataclasses import dataclass

import wasmtime

import bringup
from bringup.driver import CopyKind, DeviceSpec
from bringup.ir.dtypes import int64
from bringup.ir.index import Int
from bringup.targets.registry import register_target
from bringup.targets.scalar import ScalarEmitter
from bringup.targets.source import Source
from bringup.targets.target import CannotRender, Target

REPORT, SCRATCH, HEAP, TOP = 4096, 8192, 1 << 20, 1 << 30  # addresses; the arguments of a launch are at 0
TYPES = {"bool": "i32", "uint8": "i32", "int32": "i32", "int64": "i64", "float32": "f32", "float64": "f64"}
COMPARISONS = {"lt", "le", "gt", "ge"}
OF_FLOATS = {"add", "sub", "mul", "div", "neg", "abs", "floor", "ceil", "trunc", "sqrt", "eq", "ne", *COMPARISONS}
OF_INTEGERS = {"add", "sub", "mul", "and", "or", "xor", "eq", "ne"}
OF_BOOLS = {"add": "or", "mul": "and", "not": "eqz", "and": "and", "or": "or", "xor": "xor", "eq": "eq", "ne": "ne"}
PLAIN = {"divide": "div_s", "shift_left": "shl", "shift_right": "shr_s"}
CASTS = {
    ("i32", "i64"): "i64.extend_i32_s",
    ("i64", "i32"): "i32.wrap_i64",
    ("f32", "f64"): "f64.promote_f32",
    ("f64", "f32"): "f32.demote_f64",
}


class Emitter(ScalarEmitter):
    """One kernel as a module with one function."""

    # ---- values ----
    def type(self, dtype):
        if dtype.name not in TYPES:
            raise CannotRender(f"{dtype.name} values")
        return TYPES[dtype.name]

    def instruction(self, op, types, to):
        here, there, name = self.type(types[-1]), self.type(to), types[0].name
        if op == "select":
            return "(select {1} {2} {0})"
        if op == "cast":
            return self.cast(types[0], to, here, there)
        if op == "convert":
            return f"({there}.trunc_sat_{here}_s {{}})"
        if op == "reinterpret":
            return f"({there}.reinterpret_{here} {{}})"
        if op in PLAIN:
            return self.wrapped(f"({here}.{PLAIN[op]} {{}} {{}})", to)
        if types[0].is_float:
            code = "nearest" if op == "round" else op if op in OF_FLOATS else None
        elif name == "bool":
            code = f"{op}_u" if op in COMPARISONS else OF_BOOLS.get(op)
        else:
            code = f"{op}_s" if op in COMPARISONS else op if op in OF_INTEGERS else None
        if code is None:
            return None
        return self.wrapped(f"({here}.{code}{' {}' * len(types)})", to)

    def wrapped(self, text, to):
        return f"(i32.and {text} (i32.const 255))" if to.name == "uint8" else text

    def cast(self, source, to, here, there):
        if to.name == "bool" or (source.is_float and not to.is_float):
            return None
        convert = CASTS.get((here, there), f"{there}.convert_{here}_s")
        return self.wrapped("{}" if here == there else f"({convert} {{}})", to)

    def constant(self, value):
        number = value.value.hex() if value.dtype.is_float else str(int(value.value))
        return f"({self.type(value.dtype)}.const {number})"

    def read(self, variable):
        return f"(local.get ${variable})"

    def given(self, assignment, body, to):
        return f"(block (result {self.type(to)}) {assignment} {body})"

    def either(self, condition, yes, no, to):
        return f"(if (result {self.type(to)}) {condition} (then {yes}) (else {no}))"

    def checked(self, place, inside, extent):
        report = "(i64.store (local.get $report) (i64.const 1))"
        for at, word in ((8, self.read(place)), (16, extent)):
            report += f" (i64.store offset={at} (local.get $report) {word})"
        return f"(if (i32.eqz {inside}) (then {report} (return))) {self.read(place)}"

    # ---- memory and statements ----
    def address(self, memory, offset):
        if memory in self.scratch:
            before = self.scratch[: self.scratch.index(memory)]
            base = f"(i64.const {SCRATCH + sum((local.nbytes + 7) // 8 * 8 for local in before)})"
        else:
            base = self.read(f"b_{memory.name}")
        return f"(i32.wrap_i64 (i64.add {base} (i64.mul {offset} (i64.const {memory.dtype.size}))))"

    def load(self, memory, offset):
        code = f"{self.type(memory.dtype)}.load{'8_u' if memory.dtype.size == 1 else ''}"
        return f"({code} {self.address(memory, offset)})"

    def store(self, memory, offset, value):
        code = f"{self.type(memory.dtype)}.store{'8' if memory.dtype.size == 1 else ''}"
        return f"({code} {self.address(memory, offset)} {value})"

    def assignment(self, variable, value):
        return f"(local.set ${variable} {value})"

    def branch(self, condition, body):
        return [f"(if {condition} (then", *body, "))"]

    def loop(self, variable, begin, end, body):
        at = self.read(variable)
        step = self.assignment(variable, f"(i64.add {at} (i64.const 1))")
        start = f"{self.assignment(variable, begin)} (block $done (loop $next (br_if $done (i64.ge_s {at} {end}))"
        return [start, *body, f"{step} (br $next)))"]

    def source(self):
        """Returns the module: a function that runs steps of the kernel's first axis."""
        kernel = self.kernel
        arguments = [(f"b_{buffer.name}", int64) for buffer in kernel.buffers]
        arguments += [(f"n_{size.name}", int64) for size in kernel.sizes]
        arguments += [(f"v_{param.name}", param.dtype) for param in kernel.params]
        lines = []
        for n, (name, dtype) in enumerate(arguments):
            lines.append(self.assign(name, f"({self.type(dtype)}.load offset={8 * n} (local.get $args))", dtype))
        body = self.block(kernel.body)
        if kernel.axes:
            first = f"i_{kernel.axes[0].name}"
            self.variables[first] = int64
            body = self.loop(first, self.read("begin"), self.read("end"), self.loops(kernel.axes[1:], body))
        if SCRATCH + sum((local.nbytes + 7) // 8 * 8 for local in self.scratch) > HEAP:
            raise CannotRender("more scratch than there is")
        variables = " ".join(f"(local ${name} {self.type(dtype)})" for name, dtype in self.variables.items())
        head = f'(module (import "chip" "memory" (memory 1)) (func (export "{kernel.name}")'
        parameters = "(param $args i32) (param $begin i64) (param $end i64) (param $report i32)"
        text = "\n".join([head, parameters, variables, *lines, *body, "))"])
        return Source(text, kernel.name, kernel.axes[0].extent if kernel.axes else Int(1))


@register_target
@dataclass(frozen=True)
class WebAssembly(Target):
    """Text of modules with one function ``(args, begin, end, report)`` each, over the chip's memory."""

    language = "wasm"
    version = "2"

    @classmethod
    def from_words(cls, words):
        return cls()

    def render(self, kernel):
        return Emitter(kernel).source()


class Driver(bringup.Driver):
    """One device: a WebAssembly store whose memory is the device memory."""

    name = "wasm"

    def __init__(self):
        self.lock = threading.Lock()  # a store is used by one thread at a time
        self.kernels, self.free_blocks, self.taken = [], [(HEAP, TOP - HEAP)], {}

    def device_count(self):
        return 1

    def check(self, device):
        if device != 0:
            raise ValueError(f"there is no device {device}")

    def open(self, device):
        self.check(device)
        self.store = wasmtime.Store()
        limits = wasmtime.Limits(HEAP >> 16, TOP >> 16)
        self.memory = wasmtime.Memory(self.store, wasmtime.MemoryType(limits))
        return DeviceSpec(name="WebAssembly", memory_bytes=TOP - HEAP)

    def alloc(self, device, nbytes):
        self.check(device)
        need = (nbytes + 63) // 64 * 64
        with self.lock:
            for n, (at, size) in enumerate(self.free_blocks):
                if size >= need:
                    self.free_blocks[n : n + 1] = [(at + need, size - need)] if size > need else []
                    self.taken[at] = need
                    missing = at + need - self.memory.data_len(self.store)
                    if missing > 0:
                        self.memory.grow(self.store, (missing + 65535) >> 16)
                    return at
        raise MemoryError(f"no room for {nbytes} bytes")

    def free(self, device, address):
        with self.lock:
            joined = []
            for at, size in sorted([*self.free_blocks, (address, self.taken.pop(address))]):
                if joined and sum(joined[-1]) == at:
                    at, size = joined[-1][0], joined.pop()[1] + size
                joined.append((at, size))
            self.free_blocks = joined

    def pointer(self, address):
        return ctypes.addressof(self.memory.data_ptr(self.store).contents) + address

    def copy(self, device, dst, src, nbytes, kind, stream):
        self.check(device)
        with self.lock:
            to = dst if kind == CopyKind.DEVICE_TO_HOST else self.pointer(dst)
            ctypes.memmove(to, src if kind == CopyKind.HOST_TO_DEVICE else self.pointer(src), nbytes)

    def target(self):
        return "wasm"

    def compile(self, source):
        return bytes(wasmtime.wat2wasm(source))

    def load(self, device, binary, entry):
        with self.lock:
            instance = wasmtime.Instance(self.store, wasmtime.Module(self.store.engine, binary), [self.memory])
            self.kernels.append(instance.exports(self.store)[entry])
            return len(self.kernels)

    def launch(self, device, kernel, launch):
        with self.lock:
            words = (ctypes.c_uint64 * len(launch.args))(*launch.args)
            ctypes.memmove(self.pointer(0), words, ctypes.sizeof(words))
            ctypes.memset(self.pointer(REPORT), 0, 24)
            self.kernels[kernel - 1](self.store, 0, 0, launch.grid, REPORT)
            failed, index, extent = (ctypes.c_int64 * 3).from_address(self.pointer(REPORT))
        if failed:
            raise IndexError(f"index {index} is out of bounds for dimension with size {extent}")
        return True
