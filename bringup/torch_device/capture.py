"""Work of a stream that is captured once and replayed: torch.<name>.Graph and graph, with the names of torch.cuda.

The capture itself is behind torch.accelerator.Graph; here are torch.cuda's signatures for it.
"""

from __future__ import annotations

from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from bringup import _C
from bringup.driver import in_use
from bringup.torch_device.streams import Stream, StreamContext, current_stream, synchronize

if TYPE_CHECKING or hasattr(torch.accelerator, "Graph"):
    _Graph = torch.accelerator.Graph
else:

    class _Graph:
        def __new__(cls, *args: Any, **kwargs: Any) -> _Graph:
            raise NotImplementedError(f"PyTorch {torch.__version__} has no torch.accelerator.Graph, which graphs need")


#: A memory pool: what ``Graph.pool()`` and ``graph_pool_handle()`` return.
Pool = tuple[int, int]
_handles = count(1)


class Graph(_Graph):
    """Captured work: ``Graph(keep_graph=False)``, filled by :class:`graph`, run by ``replay()`` on the current stream.

    >>> captured = torch.sim.Graph()  # doctest: +SKIP
    >>> with torch.sim.graph(captured):  # doctest: +SKIP
    ...     y = x * 2
    >>> x.fill_(3); captured.replay(); y  # doctest: +SKIP
    """

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str | None = None) -> None:
        """Captures the current stream from here on; what is left out is as given to the constructor."""
        _begin(self, pool, capture_error_mode)


def _begin(graph: torch.accelerator.Graph, pool: Pool | None, mode: str | None) -> None:
    wanted: Any = mode or graph.capture_error_mode
    torch._C._acceleratorGraph.capture_begin(graph, pool=pool or graph.graph_pool, capture_error_mode=wanted)


class graph:
    """Captures the work of a ``with`` block into a graph; nothing of it runs before ``replay()``.

    ``pool`` shares memory with other graphs, which must then be replayed in the order of their captures. ``stream`` is
    the stream to capture, a side stream if it is left out. ``capture_error_mode`` says who may wait for the whole
    device meanwhile: "global" (the default) no thread, "thread_local" other threads, "relaxed" every thread.

    What cannot be captured raises RuntimeError and ends the capture; the graph is then empty.
    """

    _side_streams: ClassVar[dict[int, torch.Stream]] = {}

    def __init__(
        self,
        graph: torch.accelerator.Graph,
        pool: Pool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str | None = None,
    ) -> None:
        if stream is None:
            index = _C.current_device()
            stream = self._side_streams.get(index) or self._side_streams.setdefault(index, Stream(index))
        self.graph = graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        self.stream_context = StreamContext(stream)

    def __enter__(self) -> None:
        if is_current_stream_capturing():
            raise RuntimeError("the current stream is being captured into a graph already: captures cannot be nested")
        synchronize()
        torch.accelerator.empty_cache()  # so that the graph's own pool finds memory
        self.stream_context.__enter__()
        try:
            _begin(self.graph, self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_context.__exit__(None, None, None)
            raise
        self.hook = register_optimizer_step_pre_hook(_refuse_uncapturable)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hook.remove()
        try:
            self.graph.capture_end()
        except RuntimeError:
            if error is None:
                raise
            # The block's own error is on its way and says the same, or more.
        finally:
            self.stream_context.__exit__(kind, error, trace)


def _refuse_uncapturable(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """An optimizer that counts its steps on the CPU would take the same step in every replay."""
    if is_current_stream_capturing() and not all(group.get("capturable", True) for group in optimizer.param_groups):
        name = type(optimizer).__name__
        raise RuntimeError(
            f"{name}.step() cannot be captured into a graph on {in_use.device_type()}: make it {name}(capturable=True)"
        )


def graph_pool_handle() -> Pool:
    """A memory pool that several captures may share."""
    return 0, next(_handles)  # graphs name their own pools (n, 0)


def is_current_stream_capturing() -> bool:
    """Whether work of this thread is captured into a graph instead of run. Opens nothing and never raises."""
    return hasattr(torch.Stream, "is_capturing") and _C.device_count() > 0 and current_stream().is_capturing()
