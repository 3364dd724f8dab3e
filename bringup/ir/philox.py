"""Philox4x32-10 on NumPy arrays: the draws that csrc/runtime/philox.h defines, for the reference interpreter."""

from __future__ import annotations

import numpy as np

from bringup.ir.dtypes import Array

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox_block(seed: Array, offset: Array, block: Array) -> tuple[Array, Array, Array, Array]:
    """The four 32-bit lanes (in uint64 arrays) of a block.

    >>> [int(lane) for lane in philox_block(np.uint64(0), np.uint64(0), np.uint64(0))]
    [1713891541, 3781805453, 3159862348, 2600524760]
    """
    seed, offset, block = (np.asarray(v, dtype=np.uint64) for v in (seed, offset, block))
    c0, c1, c2, c3 = block & _LOW, block >> _32, offset & _LOW, offset >> _32
    k0, k1 = seed & _LOW, seed >> _32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return c0, c1, c2, c3


def philox(seed: Array, offset: Array, counter: Array, bits: int) -> Array:
    """Draw number ``counter``: uint32 lane counter & 3 of block counter >> 2, or uint64 half counter & 1 of >> 1.

    >>> int(philox(np.uint64(0), np.uint64(0), np.uint64(1), 32))
    3781805453
    """
    counter = np.asarray(counter, dtype=np.uint64)
    if bits == 32:
        lanes = philox_block(seed, offset, counter >> np.uint64(2))
        lane = counter & np.uint64(3)
        low = np.where(lane == 0, lanes[0], lanes[1])
        high = np.where(lane == 2, lanes[2], lanes[3])
        return np.where(lane < 2, low, high).astype(np.uint32)
    lanes = philox_block(seed, offset, counter >> np.uint64(1))
    even = (counter & np.uint64(1)) == 0
    return np.asarray(np.where(even, lanes[0] | lanes[1] << _32, lanes[2] | lanes[3] << _32))
