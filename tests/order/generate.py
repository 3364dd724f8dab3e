"""Makes random programs: threads, streams, events, freeing, out-of-memory retries, fallbacks, copies, sharing, capture.

>>> print(script(generate(7)))

Each step is drawn by weight among those that are possible; every constant is another, so that a value in the wrong
place shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.order.program import ERROR_STREAM, EXPRESSIONS, IN_PLACE, STREAMS, WHOLE_DEVICE, Program, Step
from tests.order.waits import arrival

#: How often a step is drawn. Freeing and emptying the cache are frequent: that is where memory changes hands.
WEIGHTS = {
    "new": 7,
    "mix": 8,
    "xor": 4,
    "gather": 2,
    "churn": 6,
    "eigh": 6,
    "qr": 2,
    "grad": 1.5,
    "add_": 4,
    "copy_": 3,
    "host_new": 3,
    "host_add": 2,
    "host_read": 3,
    "host_function": 4,
    "h2d": 5,
    "d2h": 8,
    "peer": 2,
    "read": 4,
    "sum": 2,
    "capture": 1.5,
    "replay": 9,
    "drop_graph": 4,
    "remote": 1,
    "bad": 1.5,
    "synchronize": 0.5,
    "empty_cache": 4,
    "stats": 0.3,
    "mark": 2,
    "look": 2,
    "del": 13,
}
#: Elements of a tensor (4 bytes each) and how often: small ones share segments, the largest have their own.
SIZES = {256: 4, 4096: 5, 40_000: 2, 300_000: 2}
#: Bytes a program keeps on a device at most: far below the device's memory, so that hardly a request fails.
LIVE_BYTES = 6 << 20
MOST_REMOTE = 2


@dataclass
class _Tensor:
    name: str
    size: int
    device: int  # -1: the host
    stream: int
    thread: int


class _Generator:
    def __init__(self, seed: int, weights: dict[str, float]) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.steps: list[Step] = []
        self.threads = self.draw.choice((2, 2, 3))
        self.weights = dict(weights)
        # Every program is about some of the features: what it lacks cannot hide what it has.
        for op in self.draw.sample(sorted(weights), 6):
            if op not in ("new", "del"):
                self.weights[op] = 0.0
        self.tensors: list[_Tensor] = []
        self.graphs: dict[str, _Tensor] = {}
        self.count = self.remotes = 0
        self.favourite = {t: self.draw.choice((0, 0, 1, 2, 3)) for t in range(self.threads)}
        self.open: Step | None = None  # an error that nobody has asked for yet
        self.close_in = 0

    def program(self, length: int) -> Program:
        while len(self.steps) < length or self.open:
            if self.open and self.close_in == 0:
                self.add("expect", self.open.thread, ERROR_STREAM, c=self.open.c, way=self.draw.randrange(4))
                self.open = None
                continue
            self.close_in -= bool(self.open)
            self.step()
        return Program(self.seed, tuple(self.steps))

    def add(
        self, op: str, thread: int, stream: int, inputs: tuple[str, ...] = (), output: str = "", **more: int
    ) -> Step:
        more.setdefault("c", 3 + len(self.steps) * 5)
        step = Step(len(self.steps), thread, op, stream, inputs, output, **more)
        self.steps.append(step)
        return step

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def live(self, device: int) -> int:
        return sum(t.size * 4 for t in self.tensors if t.device == device)

    def step(self) -> None:
        thread = self.draw.randrange(self.threads)
        stream = self.favourite[thread] if self.draw.random() < 0.6 else self.draw.choice((0, 0, 1, 2, 3, 4, 5))
        device = STREAMS[stream][0]
        here = [t for t in self.tensors if t.device == device]
        if self.draw.random() < 0.6:  # mostly its own: the fewer waits, the more can go wrong
            here = [t for t in here if t.thread == thread and t.stream == stream] or here
        host = [t for t in self.tensors if t.device == -1]
        weights = dict(self.weights)
        if self.open:
            weights.update(dict.fromkeys(WHOLE_DEVICE, 0.0), empty_cache=20, **{"del": 20})
        if not here:
            weights.update(dict.fromkeys((*EXPRESSIONS, *IN_PLACE, "d2h", "peer", "read", "sum"), 0.0))
            weights.update(dict.fromkeys(("capture", "remote", "bad"), 0.0))
        if not host:
            weights.update(dict.fromkeys(("host_add", "host_read", "host_function", "h2d", "d2h"), 0.0))
        if not self.graphs:
            weights.update(replay=0.0, drop_graph=0.0)
        if self.remotes == MOST_REMOTE:
            weights["remote"] = 0.0
        if self.live(device) > LIVE_BYTES or (device == 0 and self.live(0) + self.live(1) > 2 * LIVE_BYTES):
            weights.update(dict.fromkeys((*EXPRESSIONS, "new", "h2d", "peer", "replay"), 0.0), **{"del": 40})
        op = self.draw.choices(list(weights), list(weights.values()))[0]
        made = getattr(self, f"do_{op}", None)
        if made:
            made(thread, stream, here, host)
        elif op in EXPRESSIONS:
            self.expression(op, thread, stream, here)
        else:
            self.add(op, thread, stream, way=self.draw.randrange(12))

    def keep(self, name: str, size: int, stream: int, thread: int, device: int) -> None:
        self.tensors.append(_Tensor(name, size, device, stream, thread))

    def expression(self, op: str, thread: int, stream: int, here: list[_Tensor]) -> None:
        if op in ("eigh", "qr"):
            here = [t for t in here if t.size in (256, 4096)]
            if not here:
                return
        a = self.draw.choice(here)
        inputs: tuple[str, ...] = (a.name,)
        if op == "mix":
            inputs = (a.name, self.draw.choice([t for t in here if t.size == a.size]).name)
        step = self.add(op, thread, stream, inputs, self.name("v"), size=a.size)
        self.keep(step.output, a.size, stream, thread, step.device)

    def do_new(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        size = self.draw.choices(list(SIZES), list(SIZES.values()))[0]
        step = self.add("new", thread, stream, (), self.name("v"), size=size)
        self.keep(step.output, size, stream, thread, step.device)

    def do_add_(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.add("add_", thread, stream, (self.draw.choice(here).name,))

    def do_copy_(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        a = self.draw.choice(here)
        others = [t for t in here if t.size == a.size and t is not a]
        if others:
            self.add("copy_", thread, stream, (a.name, self.draw.choice(others).name))

    def do_host_new(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        pinned, size = self.draw.randrange(2), self.draw.choice(here).size if here else 4096
        step = self.add("host_new", thread, 0, (), self.name("p" if pinned else "h"), size=size, way=pinned)
        self.keep(step.output, size, -1, thread, -1)

    def on_host(self, op: str, thread: int, stream: int, host: list[_Tensor]) -> None:
        self.add(op, thread, stream, (self.draw.choice(host).name,))

    def do_host_add(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.on_host("host_add", thread, 0, host)

    def do_host_read(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.on_host("host_read", thread, 0, host)

    def do_host_function(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.on_host("host_function", thread, stream, host)

    def do_h2d(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        h = self.draw.choice(host)
        step = self.add("h2d", thread, stream, (h.name,), self.name("v"))
        self.keep(step.output, h.size, stream, thread, step.device)
        if h.name.startswith("p") and self.draw.random() < 0.3:  # the next one asks for its memory at once
            self.tensors.remove(h)
            self.add("del", thread, 0, (h.name,))
            step = self.add("host_new", thread, 0, (), self.name("p"), size=h.size, way=1)
            self.keep(step.output, h.size, -1, thread, -1)

    def do_d2h(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        pairs = [(a, h) for a in here for h in host if a.size == h.size]
        if pairs:
            a, h = self.draw.choice(pairs)
            self.add("d2h", thread, stream, (a.name,), h.name)

    def do_peer(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        a = self.draw.choice(here)
        step = self.add("peer", thread, stream, (a.name,), self.name("v"))
        self.keep(step.output, a.size, arrival(step), thread, 1 - a.device)

    def do_read(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.add("read", thread, stream, (self.draw.choice(here).name,))

    def do_sum(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.add("sum", thread, stream, (self.draw.choice(here).name,))

    def do_capture(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        a = self.draw.choice(here)
        step = self.add("capture", thread, stream, (a.name,), self.name("g"))
        self.graphs[step.output] = a

    def do_replay(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        g, a = self.draw.choice(list(self.graphs.items()))
        if a.device != STREAMS[stream][0]:
            return
        step = self.add("replay", thread, stream, (a.name, g), self.name("v"))
        self.keep(step.output, a.size, stream, thread, step.device)

    def do_drop_graph(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        g = self.draw.choice(list(self.graphs))
        del self.graphs[g]
        self.add("drop_graph", thread, 0, (g,))

    def do_remote(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.remotes += 1
        self.add("remote", thread, stream, (self.draw.choice(here).name,), way=self.draw.randrange(8))

    def do_bad(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        here = [t for t in here if t.device == 0]
        if not here:
            return
        a = self.draw.choice(here)
        self.open = self.add("bad", thread, ERROR_STREAM, (a.name,))
        self.close_in = self.draw.randrange(1, 6)
        if self.draw.random() < 0.5 and a not in self.graphs.values():
            self.tensors.remove(a)
            self.add("del", thread, 0, (a.name,))
            self.add("empty_cache", self.draw.randrange(self.threads), 0)

    def do_synchronize(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        self.add("synchronize", thread, 0, way=self.draw.randrange(2))

    def do_del(self, thread: int, stream: int, here: list[_Tensor], host: list[_Tensor]) -> None:
        candidates = [t for t in self.tensors if t not in self.graphs.values()]
        if candidates:
            # Young tensors more often than old ones: their work may still be queued.
            tensor = candidates[-1 - min(int(self.draw.expovariate(0.5)), len(candidates) - 1)]
            self.tensors.remove(tensor)
            self.add("del", thread if self.draw.random() < 0.4 else tensor.thread, 0, (tensor.name,))


def generate(seed: int, length: int | None = None, weights: dict[str, float] | None = None) -> Program:
    """Returns the program of a seed, 20 to 70 steps unless told; ``weights`` replace those of WEIGHTS by name."""
    generator = _Generator(seed, {**WEIGHTS, **(weights or {})})
    return generator.program(length or generator.draw.randrange(20, 71))
