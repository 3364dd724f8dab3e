"""Who touched which memory last: what a new access is compared with."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from bringup.sanitizer.order import Order, Stream
from bringup.sanitizer.race import Access, Stack, StreamRace, race, reuse, stack
from bringup.sanitizer.span import Span

#: Accesses of a storage that are remembered.
_ACCESSES = 256
#: Freed blocks that are remembered until they are given out again.
_FREED = 1 << 14


@dataclass
class Freed:
    """A block that a tensor gave back while streams may still use it."""

    size: int
    accesses: list[Access]
    stack: Stack


class Memory:
    """Accesses of live storages, by where they begin: no two addresses are the same, also of host memory."""

    def __init__(self) -> None:
        self.order = Order()
        self.lock = threading.RLock()
        self.accesses: dict[int, list[Access]] = {}
        self.host_storages: dict[int, StorageWeakRef] = {}
        self.shared: dict[int, set[Stream]] = {}
        self.freed: OrderedDict[int, Freed] = OrderedDict()
        self.pending: list[StreamRace] = []

    def access(self, base: int, access: Access) -> None:
        """Notes an access of the storage at ``base``; raises StreamRace where one before it is in no order with it."""
        earlier = self.accesses.setdefault(base, [])
        kept = []
        for other in earlier:
            same = other.span == access.span
            if other.stream == access.stream:  # a stream is in order
                if not (same and access.writes >= other.writes):
                    kept.append(other)
                continue
            ordered = other.stream is None or self.order.follows(access.stream, other.stream, other.number)
            if not ordered and (access.writes or other.writes) and other.span.overlaps(access.span):
                raise race(other, access)
            if not (ordered and access.writes and same):
                kept.append(other)
        self.accesses[base] = [*kept[-_ACCESSES:], access]

    def is_host_storage(self, base: int, storage: torch.UntypedStorage, begins: bool) -> bool:
        """Whether streams have touched this host storage; ``begins``: one does now.

        Pinned memory is given out again, and its allocator waits for streams before that: a storage is not the one
        that was at the same place before.
        """
        known = self.host_storages.get(base)
        if known is not None and (known.expired() or known.cdata != storage._cdata):
            del self.host_storages[base]
            self.accesses.pop(base, None)
            known = None
        if known is None and begins:
            self.host_storages[base] = StorageWeakRef(storage)
        return begins or known is not None

    def share(self, base: int, stream: Stream) -> None:
        """The allocator was told that a stream uses a block: it waits for what the stream has now."""
        self.shared.setdefault(base, set()).add(stream)

    def free(self, device: int, base: int, size: int, stream: int) -> None:
        """A tensor gives its block back; the stream it came from may get it again at once."""
        shared = self.shared.pop(base, set())
        owner = (device, stream)
        left = [
            one for one in self.accesses.pop(base, []) if one.stream not in (None, owner) and one.stream not in shared
        ]
        if left:
            self.freed[base] = Freed(size, left, stack())
            self.freed.move_to_end(base)
            if len(self.freed) > _FREED:
                self.freed.popitem(last=False)

    def allocate(self, device: int, base: int, size: int, stream: int) -> None:
        """A tensor gets a block: what streams do with its last life must come before."""
        if not self.freed:
            return
        block = Span(base, (size,), (1,), 1)
        for address in [one for one, freed in self.freed.items() if one < base + size and base < one + freed.size]:
            freed = self.freed.pop(address)
            for used in freed.accesses:
                if used.stream is None or not used.span.overlaps(block):
                    continue
                if not self.order.follows((device, stream), used.stream, used.number):
                    self.pending.append(reuse(used, freed.stack, stack()))
                    break
