"""The waits that make a program free of races: for every two steps that touch the same thing, an order that holds.

Two steps conflict if both touch a name and one of them changes it. The later one then waits
- on the host until the earlier one was issued, if that is another thread's;
- on its stream, or on the host where it works there, until the earlier one is done, if that was queued elsewhere.
Memory that a foreign stream used is freed as PyTorch asks: after `record_stream`, or after its own stream has waited.
The waits follow from the steps, so that a program stays free of races when steps are dropped from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.order.program import ERROR_STREAM, ON_HOST, STREAMS, Program, Step

HOST = -1
#: Where an access leaves nothing to wait for once the step was issued.
DONE = -2


@dataclass
class Waits:
    """What one step does around its work."""

    issued: set[int] = field(default_factory=set)  # steps of other threads
    #: (earlier step, its stream, the stream that waits or HOST, kind): "event", "stream" (wait_stream), "host" …
    queued: list[tuple[int, int, int, str]] = field(default_factory=list)
    record_stream: list[str] = field(default_factory=list)  # inputs, on the step's stream
    events: set[int] = field(default_factory=set)  # streams on which a later step waits for this one


def arrival(step: Step) -> int:
    """Returns the stream on which the tensor of a peer copy arrives: the other device's default stream."""
    return 4 if step.device == 0 else 0


def is_unpinned(name: str) -> bool:
    return name.startswith("h")


def starts_on(step: Step, name: str) -> int:
    """Returns the stream whose order the step's access to ``name`` follows, HOST, or DONE if it needs none."""
    if step.op in ("del", "drop_graph", "capture", "remote", "empty_cache", "stats") or name.startswith("device "):
        return DONE  # remote: sending a tensor waits for its device
    if step.op in ON_HOST or (is_unpinned(name) and step.op in ("h2d", "d2h")):
        return HOST
    return step.stream


def ends_on(step: Step, name: str) -> int:
    """Returns the stream whose order says when the access is over, or DONE if it is when the step returns."""
    if step.op in ON_HOST or step.op in ("read", "sum", "remote", "capture", "synchronize", "expect"):
        return DONE
    if name.startswith("device ") or (is_unpinned(name) and step.op in ("h2d", "d2h")):
        return DONE
    return arrival(step) if step.op == "peer" and name == step.output else step.stream


def _kind(seed: int, earlier: Step, later: Step, where: int) -> str:
    draw = (seed * 31 + earlier.number * 7 + later.number * 13 + 5) % 8
    if where == HOST:
        return "synchronize the event" if draw < 5 else "synchronize the stream"
    if earlier.stream == ERROR_STREAM:
        return "event"  # whoever waited on the host would get the error
    return "event" if draw < 4 else "stream" if draw < 6 else "host"


def conflicts(program: Program) -> list[tuple[Step, Step, str]]:
    """Returns the pairs (earlier, later, name) whose order matters."""
    last_write: dict[str, Step] = {}
    reads: dict[str, list[Step]] = {}
    pairs = []
    for step in program.steps:
        writes = set(step.writes())
        for name in dict.fromkeys((*step.reads(), *step.writes())):
            if name in last_write:
                pairs.append((last_write[name], step, name))
            if name in writes:
                pairs += [(read, step, name) for read in reads.get(name, [])]
        for name in step.reads():
            reads.setdefault(name, []).append(step)
        for name in writes:
            last_write[name] = step
            reads[name] = []
    return pairs


def plan(program: Program) -> dict[int, Waits]:
    """Returns the waits of each step, by its number."""
    result = {step.number: Waits() for step in program.steps}

    def wait(earlier: Step, later: Step, ends: int, where: int, kind: str) -> None:
        entry = (earlier.number, ends, where, kind)
        waits = result[later.number]
        if entry not in waits.queued:
            waits.queued.append(entry)
        if kind not in ("stream", "synchronize the stream"):
            result[earlier.number].events.add(ends)

    for earlier, later, name in conflicts(program):
        if earlier.thread != later.thread:
            result[later.number].issued.add(earlier.number)
        starts, ends = starts_on(later, name), ends_on(earlier, name)
        if DONE not in (starts, ends) and starts != ends:
            wait(earlier, later, ends, starts, _kind(program.seed, earlier, later, starts))

    home: dict[str, int] = {}
    foreign: dict[str, list[tuple[Step, int]]] = {}
    for step in program.steps:
        for name in dict.fromkeys((*step.inputs, *([step.output] if step.output else []))):
            if name not in home:
                if name == step.output and not name.startswith(("h", "p", "g")):
                    home[name] = ends_on(step, name)
                continue
            ends = ends_on(step, name)
            if ends in (DONE, home[name]):
                continue
            if (program.seed + step.number) % 2:
                result[step.number].record_stream.append(name)
            else:
                foreign.setdefault(name, []).append((step, ends))
        if step.op == "del" and step.inputs[0] in home:
            for user, ends in foreign.get(step.inputs[0], []):
                if user.thread != step.thread:
                    result[step.number].issued.add(user.number)
                wait(user, step, ends, home[step.inputs[0]], "event")
    return result


def script(program: Program) -> str:
    """Returns the program as text: one line per step, its waits before it."""
    lines = []
    waits = plan(program)
    for step in program.steps:
        w = waits[step.number]
        lead = f"thread {step.thread}  "
        lines += [f"{lead}until thread {_thread(program, n)} has issued step {n}" for n in sorted(w.issued)]
        for earlier, ends, where, kind in w.queued:
            stream, other = STREAMS[where][1] if where >= 0 else "host", STREAMS[ends][1]
            lines.append(
                lead
                + {
                    "event": f"{stream}.wait_event(event{earlier})",
                    "stream": f"{stream}.wait_stream({other})",
                    "synchronize the stream": f"{other}.synchronize()",
                }.get(kind, f"event{earlier}.synchronize()")
            )
        where = "" if step.op in ON_HOST or step.op == "synchronize" else f"  # on {STREAMS[step.stream][1]}"
        lines.append(f"{lead}{step.number}: {step.text()}{where}")
        lines += [f"{lead}{name}.record_stream({STREAMS[step.stream][1]})" for name in w.record_stream]
        lines += [f"{lead}event{step.number} = {STREAMS[on][1]}.record_event()" for on in sorted(w.events)]
    return "\n".join(lines)


def _thread(program: Program, number: int) -> int:
    return next(step.thread for step in program.steps if step.number == number)
