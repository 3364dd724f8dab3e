"""sim with what few drivers offer: graphs and library functions of its own, and a device that is lost on demand."""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from bringup.driver import CallSpec, DeviceLost, Launch, LibraryOp, NumberArgument, TensorArgument
from bringup.driver.c_functions import METHODS
from bringup.drivers.sim import Driver as Sim
from bringup.targets.toolchain import compile_c, host_target
from tests.c_compiler import INCLUDE

SOURCE = (
    (INCLUDE / "bringup" / "driver.h").read_text()
    + r"""
static int64_t calls;
int64_t library_calls(void) { return calls; }

/* context: rows, inner size, columns; arguments: a, b, out, and a workspace of a row. */
int32_t mm(void *context, int32_t device, const bringup_launch *launch) {
  const int64_t *size = context;
  const float *a = (const float *)launch->args[0], *b = (const float *)launch->args[1];
  float *out = (float *)launch->args[2], *row = (float *)launch->args[3];
  if (launch->address_count != 4 || launch->arg_count != 4 || device < 0) return BRINGUP_INVALID;
  for (int64_t i = 0; i < size[0]; i++) {
    for (int64_t j = 0; j < size[2]; j++) {
      row[j] = 0;
      for (int64_t k = 0; k < size[1]; k++) row[j] += a[i * size[1] + k] * b[k * size[2] + j];
    }
    for (int64_t j = 0; j < size[2]; j++) out[i * size[2] + j] = row[j];
  }
  calls++;
  if (launch->finished) *launch->finished = 1;
  return BRINGUP_OK;
}

/* context: how many elements; arguments: a, b, out, alpha. */
int32_t add(void *context, int32_t device, const bringup_launch *launch) {
  const float *a = (const float *)launch->args[0], *b = (const float *)launch->args[1];
  float *out = (float *)launch->args[2];
  union { uint64_t bits; double value; } alpha = {launch->args[3]};
  for (int64_t i = 0; i < *(const int64_t *)context; i++) out[i] = a[i] + (float)alpha.value * b[i];
  calls++;
  if (launch->finished) *launch->finished = 1;
  return BRINGUP_OK;
}

int32_t fails(void *context, int32_t device, const bringup_launch *launch) { return BRINGUP_UNSUPPORTED; }
"""
)


@cache
def library() -> ctypes.CDLL:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(compile_c(SOURCE, host_target()))
        file.flush()
        loaded = ctypes.CDLL(file.name)
    loaded.library_calls.restype = ctypes.c_int64
    return loaded


class Driver(Sim):
    name = "contract"
    library_ops = ("aten::mm", "aten::add.Tensor", "aten::sub.Tensor")

    def __init__(self) -> None:
        super().__init__("devices=2,memory=256M")
        self.asked: list[CallSpec] = []
        self.kept: list[Any] = []
        self.handles = itertools.count(1)
        self.recording: dict[int, list[Callable[[int], None]]] = {}
        self.graphs: dict[int, list[Callable[[int], None]]] = {}
        self.graph_launches: list[int] = []
        self.correlations: list[tuple[str, int]] = []

    # ---- library ops ----
    def library_op(self, device: int, call: CallSpec) -> LibraryOp:
        self.asked.append(call)
        if {tensor.dtype for tensor in call.tensors} != {"float32"}:
            raise NotImplementedError("float32 alone")

        def function(name: str) -> int:
            return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0

        def context(*numbers: int) -> int:
            self.kept.append((ctypes.c_int64 * len(numbers))(*numbers))
            return ctypes.addressof(self.kept[-1])

        contiguous = all(tensor.strides == strides_of(tensor.shape) for tensor in call.tensors)
        if call.op == "aten::mm" and contiguous:
            (rows, inner), (_, columns) = call.tensors[0].shape, call.tensors[1].shape
            return LibraryOp(function("mm"), context(rows, inner, columns), workspace_bytes=4 * columns)
        if call.op == "aten::add.Tensor" and contiguous and len({tensor.shape for tensor in call.tensors}) == 1:
            if call.arguments["other"] == NumberArgument(0):
                raise NotImplementedError("two tensors alone")
            assert call.arguments["other"] == TensorArgument((1,))
            assert call.arguments["alpha"] == NumberArgument(0)
            size = 1
            for extent in call.outputs[0].shape:
                size *= extent
            return LibraryOp(function("add"), context(size), elementwise=True)
        if call.op == "aten::sub.Tensor" and call.outputs[0].shape == (7,):
            return LibraryOp(function("fails"))
        raise NotImplementedError("another layout")

    # ---- graphs: Python lists of what is to be done ----
    def graph_begin(self, device: int, stream: int) -> None:
        self.recording[stream] = []

    def graph_end(self, device: int, stream: int) -> int:
        graph = next(self.handles)
        self.graphs[graph] = self.recording.pop(stream)
        return graph

    def graph_launch(self, device: int, graph: int, stream: int, correlation: int) -> None:
        self.graph_launches.append(correlation)
        for step in self.graphs[graph]:
            step(stream)

    def graph_destroy(self, device: int, graph: int) -> None:
        del self.graphs[graph]

    def launch(self, device: int, kernel: int, launch: Launch) -> bool:
        run = super().launch
        self.correlations.append((launch.name, launch.correlation))
        if launch.stream in self.recording:
            self.recording[launch.stream].append(lambda stream: run(device, kernel, replace(launch, stream=stream)))
            return False
        return run(device, kernel, launch)

    def copy(self, device: int, dst: int, src: int, nbytes: int, kind: Any, stream: int, placement: Any = None) -> None:
        run = super().copy
        if stream in self.recording:
            self.recording[stream].append(lambda stream: run(device, dst, src, nbytes, kind, stream, placement))
        else:
            run(device, dst, src, nbytes, kind, stream, placement)


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


class LosingDriver(Driver):
    """Device 0 is lost in the method that ``lose`` names; ``after`` lists what was called for it since."""

    lose: ClassVar[str] = ""
    lost: ClassVar[bool] = False
    after: ClassVar[list[str]] = []


def losing(name: str) -> Callable[..., Any]:
    def method(self: LosingDriver, device: int, *rest: Any) -> Any:
        if device == 0 and self.lost:
            self.after.append(name)
        if device == 0 and name == self.lose:
            type(self).lost = True
            raise DeviceLost("it fell off the bus")
        return getattr(super(LosingDriver, self), name)(device, *rest)

    return method


if "WITHOUT_GRAPHS" in os.environ:
    for _name in ("graph_begin", "graph_end", "graph_launch", "graph_destroy"):
        delattr(Driver, _name)

_WITHOUT_A_DEVICE = ("device_count", "target", "compile", "host_alloc", "host_free", "host_register", "host_unregister")
if "LOSING" in os.environ:
    for _name in METHODS:
        if _name not in _WITHOUT_A_DEVICE:
            setattr(LosingDriver, _name, losing(_name))
    Driver = LosingDriver  # type: ignore[misc]
