"""Tensors and events of a device in another process: ``bringup check --level ipc``."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from bringup.kit.driver_checks import Skip, Wrong, expect, place_of

if TYPE_CHECKING:
    import torch

_SECONDS = 60


def _offers(device: torch.device, *functions: str) -> None:
    from bringup.driver import in_use

    driver = in_use.driver_of(device.index).driver
    missing = [name for name in functions if not driver.offers(name)]
    if missing:
        raise Skip(f"the driver has no {', '.join(missing)}")


def _answer(work: Any, *arguments: Any) -> Any:
    """What a function returns in a new process; torch's queues carry tensors as shared memory."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_serve, args=(work, inbox, outbox), daemon=True)
    process.start()
    try:
        inbox.put(arguments)
        try:
            ok, answer = outbox.get(timeout=_SECONDS)
        except queue.Empty:
            raise Wrong(f"the other process has not answered for {_SECONDS} s") from None
        inbox.put(None)  # it may end: what it sent was received
        process.join(_SECONDS)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
    expect(ok, f"the other process failed: {answer}")
    return answer


def _serve(work: Any, inbox: Any, outbox: Any) -> None:
    try:
        outbox.put((True, work(*inbox.get(timeout=_SECONDS))))
    except Exception as error:
        outbox.put((False, f"{type(error).__name__}: {error}{place_of(error.__cause__ or error)}"))
    inbox.get(timeout=_SECONDS)


def _values(*tensors: torch.Tensor) -> list[Any]:
    return [(str(x.device), str(x.dtype), tuple(x.stride()), x.cpu().tolist()) for x in tensors]


def _add_one(x: torch.Tensor) -> str:
    import torch

    x.add_(1)
    torch.get_device_module(x.device).synchronize(x.device)
    return str(x.device)


def tensors_arrive(device: torch.device) -> None:
    """Another process reads what this one wrote: dtypes, views and strides."""
    import torch

    _offers(device, "ipc_export", "ipc_import")
    x = torch.arange(24, device=device).reshape(4, 6)
    sent = [x, x.t()[1:], x.float() / 2, x[2:, ::2].bool()]
    expected = _values(*sent)
    torch.get_device_module(device).synchronize(device)
    seen = _answer(_values, *sent)
    expect(seen == expected, f"the other process sees {seen} instead of {expected}")


def memory_is_shared(device: torch.device) -> None:
    """What the other process writes is here, without a copy."""
    import torch

    _offers(device, "ipc_export", "ipc_import")
    x = torch.zeros(1000, device=device)
    torch.get_device_module(device).synchronize(device)
    where = _answer(_add_one, x)
    expect(where == str(x.device), f"it arrived on {where}")
    expect(bool(x.cpu().eq(1).all()), "what the other process wrote is not here")


def memory_comes_back(device: torch.device) -> None:
    """The memory is free again when both processes are done with it."""
    import torch

    _offers(device, "ipc_export", "ipc_import")
    module = torch.get_device_module(device)
    module.ipc_collect()
    before = module.memory_allocated(device)
    x = torch.zeros(1000, device=device)
    _answer(_add_one, x)
    del x
    module.ipc_collect()
    now = module.memory_allocated(device)
    expect(now == before, f"{now - before} bytes are still allocated")


def events_work(device: torch.device) -> None:
    """An event of another process can be waited for, by a stream and by the host."""
    import torch

    _offers(device, "event_export", "event_import")
    module = torch.get_device_module(device)
    module.synchronize(device)
    event = module.Event(interprocess=True)
    event.record()
    handle = event.ipc_handle()
    expect(_answer(_waits, device.index, handle), "the other process did not see the event complete")


def _waits(index: int, handle: bytes) -> bool:
    import torch

    module = torch.get_device_module()
    event = module.Event.from_ipc_handle(index, handle)
    event.wait(module.current_stream(index))
    module.synchronize(index)
    event.synchronize()
    return bool(event.query())


CHECKS = (tensors_arrive, memory_is_shared, memory_comes_back, events_work)
