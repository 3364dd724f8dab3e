"""The backend ``bringup`` of torch.distributed: makes the process group of a device out of Gloo's.

>>> import torch.distributed as dist
>>> dist.init_process_group("bringup")  # doctest: +SKIP
>>> dist.init_process_group("cpu:gloo,sim:bringup")  # doctest: +SKIP

``csrc/distributed`` runs the collectives. Here the ranks are connected, and what they must have in common is compared
while every rank can still be told.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from bringup.driver.c_struct import DeviceSpecStruct
from bringup.driver.in_use import driver_of

NAME = "bringup"


def register(device_type: str) -> None:
    """Registers the backend with torch.distributed, as the one of this device type."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    dist.Backend.register_backend(NAME, _process_group, extended_api=True, devices=[device_type])


def _process_group(options: Any, host_options: Any) -> Any:
    """Returns the group for ``init_process_group`` and ``new_group``; every rank of the group calls it."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    from bringup import _C
    from bringup.distributed import flight_recorder

    if not dist.is_gloo_available():
        raise RuntimeError("the backend 'bringup' sends through Gloo, and this build of PyTorch has none")
    if host_options is not None:
        raise TypeError("the backend 'bringup' takes no pg_options: the timeout is an argument of init_process_group")
    # Without the prefix of the device's type, which ranks on different drivers do not share.
    store = PrefixStore(NAME, options.store.underlying_store)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(_meeting(store, options), store)
    _compare_ranks(store, options, _C)
    host = dist.ProcessGroupGloo(store, options.group_rank, options.group_size, timeout=options.timeout)
    host.options.global_ranks_in_group = list(options.global_ranks_in_group)
    host.options.group_name = options.group_id
    host._set_sequence_number_for_group()
    flight_recorder.install(_C)
    return _C.process_group(host, options.group_id, store)


def _meeting(store: Any, options: Any) -> str:
    """Returns a name that only the ranks of this attempt share.

    torchrun's store outlives its workers, and after a restart it still holds the addresses of those that are gone.
    Every rank says a word that nobody has said before, and waits for the first rank's answer to that word.
    """
    rank, word = options.group_rank, uuid.uuid4().hex
    if rank:
        store.set(f"word/{rank}", word)
        key = f"answer/{word}"
        store.wait([key], options.timeout)
        name = str(store.get(key).decode())
        store.set(f"{name}/here/{rank}", "")
        return name
    missing = set(range(1, options.group_size))
    end = time.monotonic() + options.timeout.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"{word}/here/{other}"]):
                missing.remove(other)
            elif store.check([f"word/{other}"]):  # the newest one; an old one is answered for nobody
                store.set("answer/" + store.get(f"word/{other}").decode(), word)
        if time.monotonic() > end:
            raise TimeoutError(f"rank {', '.join(map(str, sorted(missing)))} did not join the process group in time")
        time.sleep(0.01 if missing else 0)
    return word


def _compare_ranks(store: Any, options: Any, core: Any) -> None:
    """Raises on every rank where ranks use different drivers, or reach memory in different ways.

    How a tensor is cut into messages follows from the device, so such ranks would wait for each other for ever.
    """
    device = core.current_device()
    driver = driver_of(device).driver
    spec = DeviceSpecStruct.from_buffer_copy(core.device_spec(device))
    visible = "that the host sees" if spec.host_visible and spec.partitions <= 1 else "that is copied"
    queued = "with streams" if driver.offers("stream_create") else "without streams"
    own = [name for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter") if driver.offers(name)]
    mine = f"driver '{driver.name}', memory {visible}, {queued}" + (f", its own {', '.join(own)}" if own else "")
    store.set(f"device/{options.group_rank}", mine)
    keys = [f"device/{rank}" for rank in range(options.group_size)]
    store.wait(keys, options.timeout)
    ranks: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        ranks.setdefault(store.get(key).decode(), []).append(rank)
    if len(ranks) > 1:
        found = "; ".join(f"rank {', '.join(map(str, members))}: {kind}" for kind, members in ranks.items())
        raise ValueError(
            f"the ranks of a process group must use the same driver ({found}): set BRINGUP_DRIVERS alike on all of "
            "them, or make groups of like ranks with new_group"
        )
