"""How fast the UPMEM simulator is here, and the curves of docs/upmem.md.

    python benchmarks/upmem.py                  # prints, writes results/upmem_speed.json and docs/upmem_*.svg

Speed is wall time on this machine; curves are simulated time. VA and GEMV have the sizes of PrIM's strong scaling.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
from prim import KERNELS, SOURCES, heap
from recording import ROOT, record
from svg import bars, lines

from bringup.upmem import DpuSet, compile_program

DPUS = 2556
VA_ELEMENTS = 160 << 20
GEMV_ROWS, GEMV_COLUMNS = 163840, 4096


def speed(
    name: str, source: str, inputs: list[np.ndarray], out: tuple[int, str, int], **arguments: int
) -> dict[str, float]:
    """Seconds of the parts of a run on all DPUs; inputs are (DPUs, n), out is (which place, dtype, length)."""
    place, dtype, length = out
    with DpuSet(DPUS) as dpus:
        started = time.perf_counter()
        dpus.load((SOURCES / source).read_text())
        loaded = time.perf_counter()
        places = [dpus.heap]
        for one in inputs:
            places.append(places[-1] + one.nbytes // DPUS)
        pages = -(-(places[-1] + length * 4) // 4096) * 4096
        dpus.mram[:, :pages:4096] = 0
        result = np.zeros((DPUS, length), dtype)
        result.fill(1)
        touched = time.perf_counter()
        heap(dpus, *inputs)
        written = time.perf_counter()
        dpus.launch(**arguments)
        launched = time.perf_counter()
        dpus.transfer(places[place], result.ctypes.data, result.nbytes // DPUS, to=False)
        done = time.perf_counter()
    expected = inputs[0] + inputs[1] if name == "VA" else None
    if expected is not None and not np.array_equal(result, expected):
        raise AssertionError("wrong sums")
    return {
        "compile and load": loaded - started,
        "first touch": touched - loaded,
        "to DPUs": written - touched,
        "launch": launched - written,
        "from DPUs": done - launched,
        "first transfer to result": done - touched,
    }


def speeds() -> dict[str, object]:
    rng = np.random.default_rng(0)
    count = VA_ELEMENTS // DPUS // 256 * 256
    made = time.perf_counter()
    a = rng.integers(0, 1 << 20, (DPUS, count), dtype=np.int32)
    b = a[::-1].copy()
    generated = time.perf_counter() - made
    va = speed("VA", "va.c", [a, b], (1, "int32", count), count=count)
    del a, b
    rows = GEMV_ROWS // DPUS // 2 * 2
    matrix = rng.integers(0, 50, (DPUS, rows * GEMV_COLUMNS), dtype=np.int32)
    vector = np.tile(rng.integers(0, 50, GEMV_COLUMNS, dtype=np.int32), (DPUS, 1))
    gemv = speed("GEMV", "gemv.c", [matrix, vector], (2, "int32", rows), rows=rows, columns=GEMV_COLUMNS)
    return {
        "VA elements": count * DPUS,
        "GEMV rows": rows * DPUS,
        "GEMV columns": GEMV_COLUMNS,
        "data generation, VA": round(generated, 2),
        "VA": {key: round(value, 2) for key, value in va.items()},
        "GEMV": {key: round(value, 2) for key, value in gemv.items()},
        "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1),
    }


def interpreter_mips() -> float:
    """Million RV32 instructions a second of the timing tier, by CPU time: a launch counted less one that is not."""
    with DpuSet(1) as dpus:
        text = "#define T int32_t\n#define OP +\n" + (SOURCES / "arithmetic.c").read_text()
        dpus.load(compile_program(text, tasklets=16, stack_bytes=512, timed=True))
        best = 0.0
        for rounds in (20000, 20001, 20002):
            before = time.process_time()
            dpus.launch(rounds=rounds, value=1, operand=1)
            counted = time.process_time() - before
            instructions = float(dpus.time().instructions.sum()) * 7 / 6  # an address's shift weighs nothing
            before = time.process_time()
            dpus.launch(rounds=rounds, value=1, operand=1)
            best = max(best, instructions / (counted - (time.process_time() - before)) / 1e6)
    return best


def curves() -> dict[str, object]:
    """Simulated times: VA, GEMV and HST-L over tasklets, VA and GEMV over DPUs."""
    tasklets = [1, 2, 4, 8, 11, 16, 20, 24]
    over_tasklets: dict[str, list[float]] = {}
    for name in ("VA", "GEMV", "HST-L"):
        kernel = KERNELS[name]
        text = "".join(f"#define {one}\n" for one in kernel.macros) + (SOURCES / kernel.source).read_text()
        cycles = []
        for count in tasklets:
            with DpuSet(1) as dpus:
                dpus.load(compile_program(text, tasklets=count, timed=True, stack_bytes=512))
                size = 2640 if name == "GEMV" else 176 * 1024
                for _ in kernel.run(dpus, size, np.random.default_rng(1)):
                    cycles.append(float(dpus.time().cycles[0]))
        over_tasklets[name] = [round(cycles[0] / one, 3) for one in cycles]
    dpus_counts = [1, 4, 16, 64, 256, 1024, 2556]
    over_dpus: dict[str, list[float]] = {"VA": [], "GEMV": []}
    for name, size in (("VA", 2556 * 2048), ("GEMV", 2556 * 64)):
        for count in dpus_counts:
            with DpuSet(count) as dpus:
                dpus.load(KERNELS[name].program())
                whole = size // count // 2048 * 2048 * count if name == "VA" else size // count // 2 * 2 * count
                for _ in KERNELS[name].run(dpus, whole, np.random.default_rng(1)):
                    over_dpus[name].append(round(dpus.time().seconds * 1e3, 4))
    return {"tasklets": tasklets, "over tasklets": over_tasklets, "dpus": dpus_counts, "over dpus": over_dpus}


def roofline() -> dict[str, tuple[float, float]]:
    """For each kernel: instructions per byte of MRAM, and million instructions a second, on one DPU."""
    found = {}
    for name, kernel in KERNELS.items():
        with DpuSet(1) as dpus:
            dpus.load(kernel.program())
            size = {"TRNS": 256, "MLP": 512, "GEMV": 4096}.get(name, 65536)
            for _ in kernel.run(dpus, size, np.random.default_rng(2)):
                estimate = dpus.time()
            instructions = float(estimate.instructions[0])
            rate = instructions / float(estimate.cycles[0]) * 350
            found[name] = (round(instructions / float(estimate.mram_bytes[0]), 4), round(rate, 1))
    return found


def plots(data: dict[str, object], folder: Path) -> None:
    from recording import recorded

    scaling = data["curves"]
    assert isinstance(scaling, dict)
    (folder / "upmem_tasklets.svg").write_text(
        lines(
            "Speedup over tasklets (simulated)",
            "tasklets",
            "times one tasklet",
            scaling["tasklets"],
            scaling["over tasklets"],
        )
    )
    (folder / "upmem_dpus.svg").write_text(
        lines(
            "Kernel time over DPUs (simulated; above 64 extrapolated)",
            "DPUs",
            "ms",
            scaling["dpus"],
            scaling["over dpus"],
            log=True,
        )
    )
    points = data["roofline"]
    assert isinstance(points, dict)
    at = [2.0**power for power in range(-4, 7)]
    roof = {"roof": [min(350.0, 628 * x) for x in at]}
    (folder / "upmem_roofline.svg").write_text(
        lines(
            "Roofline of one DPU",
            "instructions per byte of MRAM",
            "million instructions/s",
            at,
            roof,
            log=True,
            points=points,
        )
    )
    errors = {
        row["name"]: [float(row[law]) for law in ("uPIMulator", "uncalibrated", "without 64")]
        for row in recorded("upmem_prim")["data"]["kernels"]
    }
    names = ["uPIMulator", "ours, no calibration", "ours, fitted to 1, 4, 16 DPUs (rows of 64)"]
    (folder / "upmem_error.svg").write_text(bars("Mean error of kernel time", "%", names, errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-speed", action="store_true", help="only the curves; keeps the recorded speed")
    options = parser.parse_args()
    from recording import RESULTS, recorded

    if options.no_speed and (RESULTS / "upmem_speed.json").exists():
        data = {key: recorded("upmem_speed")["data"][key] for key in ("speed", "interpreter MIPS")}
    else:
        data = {"speed": speeds(), "interpreter MIPS": round(interpreter_mips(), 1)}
        print(data)
    data["curves"] = curves()
    data["roofline"] = roofline()
    record("upmem_speed", data)
    plots(data, ROOT / "docs")
    print("written: results/upmem_speed.json, docs/upmem_*.svg")


if __name__ == "__main__":
    main()
