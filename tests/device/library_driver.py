"""A driver with library ops: host memory, NumPy as the chip's library; the tests read what was called."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np

from bringup.driver import DeviceSpec, Tensor
from bringup.driver import Driver as Base

calls: list[str] = []


def array(tensor: Tensor) -> np.ndarray:
    dtype = np.dtype(tensor.dtype)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    flat = (ctypes.c_char * (max(extent, 1) * dtype.itemsize)).from_address(tensor.address)
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(np.frombuffer(flat, dtype), tensor.shape, strides)


def mm(out: Tensor, a: Tensor, b: Tensor) -> Any:
    if a.dtype != "float32":
        return NotImplemented
    calls.append("mm")
    array(out)[...] = array(a) @ array(b)
    return None


def add(out: Tensor, a: Any, b: Any, alpha: float) -> None:
    calls.append("add")
    a, b = (array(x) if isinstance(x, Tensor) else x for x in (a, b))
    array(out)[...] = a + alpha * b


def sort(out: tuple[Tensor, Tensor], a: Tensor, dim: int, descending: bool) -> None:
    calls.append("sort")
    order = np.argsort(array(a), axis=dim, kind="stable")
    order = np.flip(order, dim) if descending else order
    array(out[0])[...] = np.take_along_axis(array(a), order, dim)
    array(out[1])[...] = order


class Driver(Base):
    name = "library"
    device_name = "libchip"
    ops: ClassVar[dict[str, Any]] = {"aten::mm": mm, "aten::add.Tensor": add, "aten::sort": sort}

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}

    def device_count(self) -> int:
        return 1

    def open(self, device: int) -> DeviceSpec:
        return DeviceSpec("library chip", 1 << 28)

    def alloc(self, device: int, nbytes: int) -> int:
        block = ctypes.create_string_buffer(nbytes + 64)
        address = (ctypes.addressof(block) + 63) // 64 * 64
        self.memory[address] = block
        return address

    def free(self, device: int, address: int) -> None:
        del self.memory[address]

    def copy(self, device, dst, src, nbytes, kind, stream, placement=None) -> None:  # type: ignore[no-untyped-def]
        ctypes.memmove(dst, src, nbytes)
