"""Collectives of device tensors beside Gloo's own on CPU tensors, in alternation in the same processes.

    python benchmarks/collectives.py                 # both ways of reaching memory, 2 ranks
    python benchmarks/collectives.py --pairs 40 --size 4
    python benchmarks/collectives.py --record collectives            # to results/collectives.json

Rows: all_reduce of 1 KB, 1 MB and 64 MB; ``zero-copy``: the host sees the device's memory (sim); ``staged``: it does
not, and bytes go through pinned memory. A pair is one call of each, until the result is there; times are medians of
rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recording import record

ROOT = Path(__file__).resolve().parents[1]
DRIVERS = {"zero-copy": "sim", "staged": str(ROOT / "tests" / "distributed" / "staged_driver.py")}
SIZES = {"1 KB": 1 << 8, "1 MB": 1 << 18, "64 MB": 1 << 24}  # float32
BOUNDS = {("zero-copy", "64 MB"): 1.1, ("staged", "64 MB"): 1.4, ("zero-copy", "1 KB"): 1.3, ("staged", "1 KB"): 1.3}


def rank_main(folder: str, pairs: int) -> None:
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch._C._get_privateuse1_backend_name()
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(f"cpu:gloo,{device}:bringup", store=store, rank=rank, world_size=size)
    module = getattr(torch, device)

    def seconds(x: torch.Tensor, calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x)
            if x.device.type != "cpu":
                module.synchronize()
        return (time.perf_counter() - began) / calls

    rows = {}
    for name, count in SIZES.items():
        on_cpu = torch.zeros(count)
        on_device = torch.zeros(count, device=device)
        calls = 20 if count < 1000 else 1  # small ones are timed by twenties
        taken: dict[str, list[float]] = {"cpu": [], "device": []}
        for pair in range(pairs + 3):
            both = [("cpu", on_cpu), ("device", on_device)]
            for kind, x in both if pair % 2 else reversed(both):
                dist.barrier()
                elapsed = seconds(x, calls)
                if pair >= 3:
                    taken[kind].append(elapsed)
        medians = {kind: statistics.median(values) for kind, values in taken.items()}
        rows[name] = {**medians, "ratio": medians["device"] / medians["cpu"]}
    if rank == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def measure(way: str, size: int, pairs: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "BRINGUP_DRIVERS": DRIVERS[way], "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", __file__, "--rank", folder, "--pairs", str(pairs)]
        processes = [
            subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"a rank failed: {[process.returncode for process in processes]}")
    rows: dict[str, dict[str, float]] = json.loads(outputs[0].splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--size", type=int, default=2, help="ranks")
    parser.add_argument("--way", choices=DRIVERS, action="append")
    parser.add_argument("--record", help="a name under results/")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(given.rank, given.pairs)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("memory", "all_reduce of", "CPU tensors", "device", "ratio", "bound")
    everything = {}
    with Console(stderr=True).status("all_reduce in pairs"):
        for way in given.way or DRIVERS:
            everything[way] = measure(way, given.size, given.pairs)
    for way, rows in everything.items():
        for name, row in rows.items():
            times = [f"{row[kind] * 1e3:.3f} ms" for kind in ("cpu", "device")]
            table.add_row(way, name, *times, f"{row['ratio']:.2f}", str(BOUNDS.get((way, name), "")))
    Console().print(table)
    if given.record:
        rows = [
            {
                "name": f"{way} {name}",
                "memory": way,
                "all_reduce of": name,
                "CPU ms": row["cpu"] * 1e3,
                "device ms": row["device"] * 1e3,
                "ratio": row["ratio"],
                "bound": BOUNDS.get((way, name), ""),
            }
            for way, sizes in everything.items()
            for name, row in sizes.items()
        ]
        record(given.record, {"ranks": given.size, "pairs": given.pairs, "rows": rows})


if __name__ == "__main__":
    main()
