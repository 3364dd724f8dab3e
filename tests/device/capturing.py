"""What programs that capture work and replay it are made of; ``main`` runs them all in one process, on kernels."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import bringup

PROGRAMS: dict[str, Callable[[], None]] = {}


class _Sim:
    """torch.sim, looked up when it is used: the tests that list the programs may run where there is none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.sim, name)  # type: ignore[attr-defined]


sim: Any = _Sim()


def program(run: Callable[[], None]) -> Callable[[], None]:
    assert run.__name__ not in PROGRAMS
    PROGRAMS[run.__name__] = run
    return run


@contextmanager
def refused(*words: str, kind: type[Exception] = RuntimeError) -> Iterator[None]:
    try:
        yield
    except kind as error:
        if not all(word in str(error) for word in words):
            raise AssertionError(f"expected {words}") from error
    else:
        raise AssertionError(f"nothing was refused; expected {words}")


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(found.cpu(), expected.cpu()), (found, expected)


def captured(work: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """A graph of the work, and what the work returned: tensors that a replay fills."""
    graph = sim.Graph()
    with sim.graph(graph, **options):
        result = work()
    return graph, result


def usable() -> None:
    """The device does ordinary work, on both streams that the programs use."""
    equal(torch.arange(4.0, device="sim") + 1, torch.tensor([1.0, 2, 3, 4]))
    with sim.stream(sim.Stream()):
        assert torch.ones(5, device="sim").sum().item() == 5
    sim.synchronize()
    assert not sim.is_current_stream_capturing()


def main() -> None:
    results = {}
    for name, run in PROGRAMS.items():
        bringup.fallbacks()
        try:
            run()
            results[name] = None
        except BaseException:
            results[name] = traceback.format_exc()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    assert "mode=kernels" in os.environ.get("BRINGUP_SIM", "")
    main()
