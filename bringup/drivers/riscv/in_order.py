"""The work of one stream in the order in which it was asked for, and the events between.

Work runs on the calling thread if nothing is under way and it is short: handing it to another thread costs more than a
small kernel takes. Streams of one device wait for each other only where they need its hart.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


class InOrder:
    """A queue with a thread of its own, which starts when something has to wait.

    >>> queue = InOrder("example")
    >>> queue.submit(lambda: print("on this thread"), short=True)
    on this thread
    True
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._running = False
        self._thread: threading.Thread | None = None
        self._ended = False
        self._failure: BaseException | None = None

    def submit(self, work: Callable[[], object], short: bool) -> bool:
        """Runs or queues; True: it has run, and what it raised was raised here."""
        with self._changed:
            if self._ended:
                raise RuntimeError(f"{self._name} is closed")
            if not short or self._running or self._waiting:
                self._waiting.append(work)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return False
            self._running = True
        try:
            work()
        finally:
            self._done()
        return True

    def raise_failure(self) -> None:
        """What queued work raised: reported once, the first of several."""
        if self._failure is not None:
            with self._changed:
                error, self._failure = self._failure, None
            if error is not None:
                raise error

    def end(self) -> None:
        """Nothing can be submitted any more; what was is still done."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def join(self) -> None:
        """Waits for all work."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running and not self._waiting)

    def _done(self) -> None:
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._running and (self._waiting or self._ended))
                if not self._waiting:
                    return
                work = self._waiting.popleft()
                self._running = True
            try:
                work()
            except BaseException as error:  # raised to whoever uses the stream next
                self._failure = self._failure or error
            finally:
                del work
                self._done()


@dataclass
class Event:
    """Complete when all work that a stream had before it is; ``time`` is then the device's clock."""

    stream: InOrder
    reached: threading.Event = field(default_factory=threading.Event)
    time: int = 0
