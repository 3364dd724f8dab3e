"""A random program as data: steps of several threads and streams, in one sequential order; it prints as a script.

The order of the list is the reference: every step done one after the other. `waits.py` adds the waits that make every
other order the threads and streams may take give the same result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

#: Streams of a program: number → (device, its name in the script). 0 and 4 are the default streams of two devices.
STREAMS = {0: (0, "default"), 1: (0, "s1"), 2: (0, "s2"), 3: (0, "s3"), 4: (1, "default1"), 5: (1, "t1"), 6: (0, "bad")}
#: Only failing work goes here: an error belongs to a stream, and whoever waits for that stream next gets it.
ERROR_STREAM = 6

#: Steps that compute one new device tensor from others of the same size: name → text of the expression.
EXPRESSIONS = {
    "mix": "({0} * 3 + {1} + {c}) & 0xffff",
    "xor": "{0} ^ {c}",
    "gather": "{0}.index_select(0, shuffle)",
    "churn": "churn({0}, {c})",
    "eigh": "rebuilt_from_eigh({0})",
    "qr": "rebuilt_from_qr({0})",
    "grad": "gradient({0}, {c})",
}
#: Steps that write into their first tensor.
IN_PLACE = {"add_": "{0}.add_({c}).bitwise_and_(0xffff)", "copy_": "{0}.copy_({1})"}
#: Steps of the host alone: nothing is queued.
ON_HOST = {"host_new", "host_add", "host_read", "del", "empty_cache", "stats", "drop_graph", "mark", "look"}
#: Steps that wait for a whole device, or must not meet such a wait.
WHOLE_DEVICE = {"synchronize", "capture", "remote", "bad", "expect"}


@dataclass(frozen=True)
class Step:
    """One line: ``op`` on ``stream`` by ``thread``, reading ``inputs``, making or changing ``output``."""

    number: int
    thread: int
    op: str
    stream: int = 0
    inputs: tuple[str, ...] = ()
    output: str = ""
    c: int = 0
    size: int = 0
    #: Among equal ways of doing the step: pinned or not, which wait, which op of a capture …
    way: int = 0

    @property
    def device(self) -> int:
        return STREAMS[self.stream][0]

    def reads(self) -> tuple[str, ...]:
        """Returns the names whose values the step needs."""
        return self.inputs

    def writes(self) -> tuple[str, ...]:
        """Returns the names the step makes, changes or ends, and what it has for itself alone."""
        names = [self.output] if self.output else []
        if self.op in IN_PLACE or self.op in ("host_add", "host_function", "del", "drop_graph"):
            names.append(self.inputs[0])
        if self.op == "replay":
            names.append(self.inputs[-1])  # the graph: its output is overwritten
        if self.op in WHOLE_DEVICE:
            names += ["device 0", "device 1"]
        if self.op == "remote":
            names.append("process")
            names += self.inputs if self.way & 1 else ()
        return tuple(names)

    def text(self) -> str:
        """Returns the step as a line of Python, as near as that comes."""
        if self.op in EXPRESSIONS:
            return f"{self.output} = " + EXPRESSIONS[self.op].format(*self.inputs, c=self.c)
        if self.op in IN_PLACE:
            return IN_PLACE[self.op].format(*self.inputs, c=self.c)
        pinned = ", pin_memory=True" if self.way & 1 else ""
        first = self.inputs[0] if self.inputs else ""
        closing = ("bad.synchronize()", "torch.sim.synchronize()", "failed.cpu()", "event_of_bad.synchronize()")
        calls = {
            "new": f'{self.output} = torch.full(({self.size},), {self.c}, device="sim:{self.device}")',
            "host_new": f"{self.output} = torch.full(({self.size},), {self.c}{pinned})",
            "host_add": f"{first}.add_({self.c})",
            "host_read": f"seen({first})",
            "host_function": f"torch.sim.launch_host_function(lambda: {first}.add_({self.c}))",
            "h2d": f'{self.output} = {first}.to("sim:{self.device}", non_blocking=True)',
            "d2h": f"{self.output}.copy_({first}, non_blocking=True)",
            "peer": f'{self.output} = {first}.to("sim:{1 - self.device}")',
            "read": f"seen({first}.cpu())",
            "sum": f"seen({first}.sum().item())",
            "capture": f"{self.output} = captured(lambda: {first} * 3 ^ {self.c})",
            "replay": f"{self.output} = replayed({self.inputs[-1]})" if self.op == "replay" else "",
            "remote": f"seen(in_another_process({first}, {self.c}, writes={bool(self.way & 1)}))",
            "bad": f"failed = {first}.index_select(0, out_of_range)",
            "expect": f"raises(IndexError): {closing[self.way % 4]}",
            "synchronize": f"torch.sim.synchronize({self.way % 2})",
            "empty_cache": "torch.sim.empty_cache()",
            "mark": f"shared{self.device}.record({STREAMS[self.stream][1]})",
            "look": f"shared{self.way % 2}"
            + (".synchronize()", f".wait({STREAMS[self.stream][1]})", ".query()")[self.way // 2 % 3],
            "stats": "torch.sim.memory_stats()",
            "del": f"del {first}",
            "drop_graph": f"del {first}",
        }
        return calls[self.op]


@dataclass(frozen=True)
class Program:
    """Steps in the order of the reference; ``seed`` also seeds the delays of the device."""

    seed: int
    steps: tuple[Step, ...] = field(default=())

    def without(self, numbers: Iterable[int]) -> Program:
        """Returns the program without these steps, and without those that needed what they made."""
        gone, names, kept = set(numbers), set(), []
        made = {step.output: step.number for step in self.steps if step.output and step.op != "d2h"}
        for step in self.steps:
            needed = set(step.inputs) | ({step.output} if step.op == "d2h" else set())
            partner = {"bad": "expect", "expect": "bad"}.get(step.op)
            alone = partner and any(s.op == partner and s.c == step.c and s.number in gone for s in self.steps)
            if step.number in gone or alone or any(name not in names and name in made for name in needed):
                continue
            kept.append(step)
            names |= {step.output} - {""}
        opened = {step.c for step in kept if step.op == "bad"}
        return replace(self, steps=tuple(step for step in kept if step.op != "expect" or step.c in opened))

    def to_json(self) -> str:
        return json.dumps({"seed": self.seed, "steps": [asdict(step) for step in self.steps]})

    @staticmethod
    def from_json(text: str) -> Program:
        data: dict[str, Any] = json.loads(text)
        return Program(data["seed"], tuple(Step(**{**s, "inputs": tuple(s["inputs"])}) for s in data["steps"]))
