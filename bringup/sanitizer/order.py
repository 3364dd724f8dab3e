"""What is known to come before what: streams, events and the host, each with the newest work of all others it follows.

Every piece of work has a number on its stream. A stream knows, of each other stream, up to which number its next work
comes later; waiting for an event adds what was known where it was recorded, and so does the host's waiting.
"""

from __future__ import annotations

from collections import OrderedDict

Stream = tuple[int, int]  # device, stream
Known = dict[Stream, int]

#: Events that are remembered: programs drop them without a word.
_EVENTS = 1 << 16


def join(known: Known, other: Known) -> None:
    """Adds to ``known`` what ``other`` knows.

    >>> known = {(0, 1): 5}
    >>> join(known, {(0, 1): 3, (0, 2): 1}); known
    {(0, 1): 5, (0, 2): 1}
    """
    for stream, number in other.items():
        if known.get(stream, 0) < number:
            known[stream] = number


class Order:
    """The order of work that a program has established so far."""

    def __init__(self) -> None:
        self.last: Known = {}
        self.streams: dict[Stream, Known] = {}
        self.host: Known = {}
        self.events: OrderedDict[tuple[int, int], Known] = OrderedDict()

    def known(self, stream: Stream) -> Known:
        """What the next work of a stream follows; what the host knows is part of it, as the host will ask for it."""
        known = self.streams.setdefault(stream, {})
        join(known, self.host)
        return known

    def work(self, stream: Stream) -> int:
        """Returns the number of a new piece of work."""
        number = self.last[stream] = self.last.get(stream, 0) + 1
        self.known(stream)[stream] = number
        return number

    def follows(self, stream: Stream | None, other: Stream, number: int) -> bool:
        """Whether new work of ``stream`` (None: of the host) comes after work ``number`` of another stream."""
        return (self.host if stream is None else self.known(stream)).get(other, 0) >= number

    def record(self, device: int, event: int, stream: Stream) -> None:
        """An event, by its number on its device, is recorded on a stream."""
        self.events[device, event] = dict(self.known(stream))
        self.events.move_to_end((device, event))
        if len(self.events) > _EVENTS:
            self.events.popitem(last=False)

    def wait(self, device: int, event: int, stream: Stream | None) -> None:
        """A stream (None: the host) waits for an event."""
        join(self.host if stream is None else self.known(stream), self.events.get((device, event), {}))

    def synchronize(self, stream: Stream) -> None:
        """The host has waited for a stream."""
        join(self.host, self.known(stream))
