"""A model in an emulator: it waits for inputs, runs, and waits again. What it retired stands beside its results."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup.graph.bare_metal.build import Sizes, check_fits, harness_elf, needed_bytes, sizes_of
from bringup.graph.bare_metal.options import BareMetal
from bringup.graph.bare_metal.sources import Model
from bringup.riscv.device import Device
from bringup.riscv.gemm import Gemm
from bringup.riscv.machine import Counts, open_machine

#: What unused stack looks like.
_PAINT = b"\xa5"


@dataclass(frozen=True)
class Call:
    """One run: the outputs, the instructions between call and return, and what the emulator counted."""

    outputs: list[npt.NDArray[Any]]
    instructions: int
    counts: Counts


class RunningModel:
    """A machine with a model in it. Calls from several threads wait for each other."""

    def __init__(self, model: Model, options: BareMetal, devices: Mapping[int, Device] | None = None) -> None:
        self.model, self.options = model, options
        spec = options.spec(needed_bytes(model))
        elf = harness_elf(model, spec, options)
        attached: dict[int, Device] = dict(devices or {})
        if options.accelerator:
            attached.setdefault(options.gemm_base, Gemm())
        self.machine = open_machine(options.machine or None, elf, spec, attached)
        self._symbols = {symbol.name: symbol for symbol in self.machine.program.symbols}
        code = sum(symbol.size for symbol in self._symbols.values() if symbol.is_function)
        self.sizes: Sizes = sizes_of(model, code, options.stack_bytes)
        check_fits(self.sizes, options)
        self._lock = threading.Lock()
        self.machine.run(seconds=options.seconds)
        if self._number("bringup_result"):
            raise RuntimeError(f"the weights of {model.name} are damaged: their checksum is another one")
        self._paint_stack()

    def __call__(self, inputs: Sequence[npt.NDArray[Any]]) -> Call:
        """Runs the model on arrays of the inputs' types, laid out as its inputs are."""
        program, machine = self.model.program, self.machine
        if len(inputs) != len(program.inputs):
            raise TypeError(f"{self.model.name} takes {len(program.inputs)} tensors, not {len(inputs)}")
        with self._lock:
            for number, (array, spec) in enumerate(zip(inputs, program.inputs)):
                data = memory_of(array, spec.strides, spec.elements)
                if len(data) != spec.nbytes:
                    raise ValueError(f"input {number} has {len(data)} bytes, not {spec.nbytes}")
                machine.write(self._symbols[f"bringup_in{number}"].address, data)
            machine.reset_counts()
            machine.run(seconds=self.options.seconds)
            failed = self._number("bringup_result")
            if failed:
                step = program.steps[failed - 1]
                raise IndexError(f"{step.name}: an index is out of range, or an assertion is false, in {step.note}")
            outputs = []
            for number, spec in enumerate(program.outputs):
                data = machine.read(self._symbols[f"bringup_out{number}"].address, spec.nbytes)
                flat = np.frombuffer(data, dtype=spec.dtype.storage)
                strides = [step * spec.dtype.size for step in spec.strides]
                outputs.append(np.lib.stride_tricks.as_strided(flat, spec.shape, strides))
            return Call(outputs, self._number("bringup_instructions"), machine.counts)

    def _paint_stack(self) -> None:
        """Fills what is below main's frame, so that it shows how deep a run goes."""
        start = self._symbols["__stack_top"].address - self.options.stack_bytes
        self.machine.write(start, _PAINT * (self._number("bringup_stack") - start))

    def measure_stack(self) -> int:
        """How many bytes of the stack all runs so far have needed."""
        top = self._symbols["__stack_top"].address
        start = top - self.options.stack_bytes
        left = self.machine.read(start, self.options.stack_bytes)
        return len(left.lstrip(_PAINT))

    def _number(self, name: str) -> int:
        return int.from_bytes(self.machine.read(self._symbols[name].address, 8), "little", signed=True)

    def close(self) -> None:
        """Gives the machine back."""
        self.machine.close()


def memory_of(array: npt.NDArray[Any], strides: Sequence[int], elements: int) -> bytes:
    """The bytes of an array as they lie in memory with some strides (in elements).

    >>> memory_of(np.array([[1, 2], [3, 4]], dtype=np.int8), (1, 2), 4)
    b'\\x01\\x03\\x02\\x04'
    """
    flat = np.zeros(elements, dtype=array.dtype)
    if array.size:
        step = [stride * array.itemsize for stride in strides]
        np.lib.stride_tricks.as_strided(flat, array.shape, step)[...] = array
    return flat.tobytes()
