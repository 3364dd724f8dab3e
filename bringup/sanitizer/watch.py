"""Watching a program: its ops by PyTorch's dispatch mode, what orders streams by the core's observer.

Every op says which tensors it reads and writes. Ops of autograd's workers are seen, too, because PyTorch takes modes
along; code under ``torch.compile`` runs uncompiled while a mode is on, so that nothing of it is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bringup import _C
from bringup.driver import in_use
from bringup.sanitizer.memory import Memory
from bringup.sanitizer.order import Stream
from bringup.sanitizer.race import Access, stack
from bringup.sanitizer.span import Span
from bringup.torch_device.capture import is_current_stream_capturing

#: Ops that touch no memory of their arguments, beside views.
_TOUCH_NOTHING = {"aten::record_stream", "aten::is_pinned", "aten::detach", "aten::_pin_memory", "aten::is_same_size"}
#: Ops that leave their result as the memory was.
_EMPTY = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
_COPIES = {"aten::copy_", "aten::_to_copy"}
#: Methods of tensors in host memory that are no ops, and read it.
_HOST_READS = {"numpy", "tolist", "__array__", "__dlpack__"}


class StreamSanitizer:
    """Finds accesses without an order, of streams and of the host; raises StreamRace where the second is asked for.

    >>> with StreamSanitizer():  # doctest: +SKIP
    ...     train()
    """

    def __init__(self) -> None:
        self.memory = Memory()
        self._modes = (_Ops(self.memory), _Methods(self.memory))

    def __enter__(self) -> StreamSanitizer:
        _C.observe_streams(_Listener(self.memory))
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        _C.observe_streams(None)
        if error is None and self.memory.pending:
            raise self.memory.pending[0]


class _Listener:
    """What the core tells: events, waits, blocks. It may come in the middle of anything, so it raises nothing."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def __call__(self, what: str, *numbers: int) -> None:
        with self.memory.lock:
            getattr(self, what)(*numbers)

    def recorded(self, device: int, event: int, stream: int) -> None:
        self.memory.order.record(device, event, (device, stream))

    def waited(self, device: int, event: int, waiting: int, stream: int) -> None:
        self.memory.order.wait(device, event, (waiting, stream))

    def host_waited(self, device: int, event: int) -> None:
        self.memory.order.wait(device, event, None)

    def synchronized(self, device: int, stream: int) -> None:
        self.memory.order.synchronize((device, stream))

    def shared(self, device: int, base: int, stream: int) -> None:
        self.memory.share(base, (device, stream))

    def allocated(self, device: int, base: int, size: int, stream: int) -> None:
        self.memory.allocate(device, base, size, stream)

    def freed(self, device: int, base: int, size: int, stream: int) -> None:
        self.memory.free(device, base, size, stream)


class _Ops(TorchDispatchMode):
    def __init__(self, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if func.is_view or name in _TOUCH_NOTHING:
            return func(*args, **kwargs)
        arguments = list(_arguments(func, args, kwargs))
        if name in _COPIES:
            result = _Copy(self.memory, name, arguments, kwargs, args).run(lambda: func(*args, **kwargs))
        else:
            with self.memory.lock:
                for tensor, writes in arguments:
                    _note(self.memory, tensor, writes, name)
            result = func(*args, **kwargs)
            if name not in _EMPTY:
                self._results(name, arguments, result)
            if torch.Tag.dynamic_output_shape in func.tags:
                self._wait_for(arguments)
        with self.memory.lock:
            if self.memory.pending:
                raise self.memory.pending.pop(0)
        return result

    def _results(self, name: str, arguments: list[tuple[torch.Tensor, bool]], result: Any) -> None:
        """New tensors were written; whoever has numbers, or sizes that depend on them, has waited for them."""
        given = {tensor.untyped_storage()._cdata for tensor, _ in arguments if _has_bytes(tensor)}
        with self.memory.lock:
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    if _has_bytes(value) and value.untyped_storage()._cdata not in given:
                        _note(self.memory, value, True, name)
                elif value is not None:
                    self._wait_for(arguments)

    def _wait_for(self, arguments: list[tuple[torch.Tensor, bool]]) -> None:
        with self.memory.lock:
            for tensor, _ in arguments:
                if stream := _stream_of(tensor):
                    self.memory.order.synchronize(stream)


class _Methods(TorchFunctionMode):
    """Sees what reads host memory without an op."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HOST_READS and args and isinstance(args[0], torch.Tensor) and args[0].device.type == "cpu":
            with self.memory.lock:
                _note(self.memory, args[0], False, f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


class _Copy:
    """A copy, which may go between host and device, or between devices, and may leave the host waiting for it."""

    def __init__(
        self,
        memory: Memory,
        name: str,
        arguments: list[tuple[torch.Tensor, bool]],
        kwargs: dict[str, Any],
        args: tuple[Any, ...],
    ) -> None:
        self.memory, self.name, self.arguments = memory, name, arguments
        given = kwargs.get("non_blocking", args[2] if name == "aten::copy_" and len(args) > 2 else False)
        self.non_blocking = bool(given)

    def run(self, copy: Callable[[], Any]) -> Any:
        """Copies, and notes who touched what."""
        if self.name == "aten::copy_":
            with self.memory.lock:
                self._note(self.arguments[0][0], self.arguments[1][0])
            return copy()
        result = copy()
        with self.memory.lock:
            self._note(result, self.arguments[0][0])
        return result

    def _note(self, to: torch.Tensor, source: torch.Tensor) -> None:
        streams = [stream for stream in (_stream_of(source), _stream_of(to)) if stream]
        order = self.memory.order
        if len(streams) == 2 and streams[0] != streams[1]:  # both sides wait for each other, before and after
            _meet(self.memory, *streams)
        host = [tensor for tensor in (to, source) if not _stream_of(tensor)]
        asynchronous = bool(streams and host) and self.non_blocking and host[0].is_pinned()
        by = streams[0] if streams and (asynchronous or not host) else None
        for tensor, writes in ((source, False), (to, True)):
            _note(self.memory, tensor, writes, self.name, by if asynchronous else None)
        if len(streams) == 2 and streams[0] != streams[1]:
            _meet(self.memory, *streams)
        if streams and host and not asynchronous:
            order.synchronize(streams[0])


def _meet(memory: Memory, first: Stream, second: Stream) -> None:
    known = dict(memory.order.known(first))
    for a, b in ((first, memory.order.known(second)), (second, known)):
        mine = memory.order.known(a)
        for stream, number in b.items():
            mine[stream] = max(mine.get(stream, 0), number)


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[torch.Tensor, bool]]:
    """The tensors of a call, each with whether the op writes it."""
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if value is None:
            continue
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for leaf in [value] if isinstance(value, torch.Tensor) else value if isinstance(value, (list, tuple)) else ():
            if isinstance(leaf, torch.Tensor):
                yield leaf, writes


def _has_bytes(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type in ("cpu", in_use.device_type())
        and not tensor.is_meta
        and tensor.untyped_storage().nbytes() > 0
    )


def _stream_of(tensor: torch.Tensor) -> Stream | None:
    """The stream on which an op touches a tensor; None for host memory."""
    if tensor.device.type != in_use.device_type():
        return None
    index = tensor.device.index
    return index, torch.accelerator.current_stream(index).stream_id


def _note(memory: Memory, tensor: torch.Tensor, writes: bool, op: str, by: Stream | None = None) -> None:
    """Notes an access by the tensor's stream, or by ``by`` where a stream touches host memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not _has_bytes(tensor) or tensor.numel() == 0:
        return
    stream = _stream_of(tensor) or by
    if stream is not None and not _runs_behind(stream[0]):
        return
    storage = tensor.untyped_storage()
    base = storage.data_ptr()
    if tensor.device.type == "cpu" and not memory.is_host_storage(base, storage, by is not None):
        return  # host memory that no stream has touched
    size = tensor.element_size()
    span = Span(base + int(tensor.storage_offset()) * size, tuple(tensor.shape), tuple(tensor.stride()), size)
    number = memory.order.work(stream) if stream else 0
    memory.access(base, Access(stream, number, span, writes, op, stack()))


def _runs_behind(device: int) -> bool:
    """Whether streams of a device run while the host goes on, and are not captured: a graph runs in one order."""
    return in_use.driver_of(device).driver.offers("event_record") and not is_current_stream_capturing()
