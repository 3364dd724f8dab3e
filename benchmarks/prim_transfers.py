"""The law of transfers against measured ones: start + bytes / bandwidth(direction, DPUs).

    python benchmarks/prim_transfers.py --hardware upmem_prim_hardware.csv [--fit] [--record]

Used are the kernels whose transfers are parallel ones of known size. Errors are those of a half split: even rows fit
the bandwidths, odd rows are predicted.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from recording import record

from bringup.upmem.rv32 import CALIBRATION

DPUS = (1, 4, 16, 64)
#: Bytes per unit of the published size.
BYTES = {
    "to": {"VA": 8, "RED": 8, "SEL": 8, "UNI": 8, "SCAN-SSA": 8, "SCAN-RSS": 8, "HST-S": 4, "HST-L": 4, "GEMV": 256},
    "from": {"VA": 4, "SCAN-SSA": 8, "SCAN-RSS": 8, "GEMV": 4},
}
COLUMN = {"to": "cpu_to_dpu_ms", "from": "dpu_to_cpu_ms"}
#: Chosen by hand from small transfers.
START = {"to": 0.05e-3, "from": 0.13e-3}


class Transfer(NamedTuple):
    dpus: int
    nbytes: int
    seconds: float


def bandwidths(rows: Sequence[Transfer], start: float) -> dict[int, float]:
    """Bytes per second for each number of DPUs: the least relative squares."""
    found = {}
    for dpus in DPUS:
        nbytes, seconds = np.array([(row.nbytes, row.seconds) for row in rows if row.dpus == dpus]).T
        rate = nbytes / seconds
        found[dpus] = float((rate**2).sum() / (rate * (1 - start / seconds)).sum())
    return found


def errors(rows: Sequence[Transfer], start: float, of: dict[int, float]) -> np.ndarray:
    return np.array([abs(start + row.nbytes / of[row.dpus] - row.seconds) / row.seconds for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", type=Path, required=True, help="the table of measured rows")
    parser.add_argument("--fit", action="store_true", help="write the bandwidths into the calibration")
    parser.add_argument("--record", action="store_true", help="write results/upmem_transfers.json")
    options = parser.parse_args()
    with options.hardware.open() as file:
        given = list(csv.DictReader(file))
    data = json.loads(CALIBRATION.read_text())
    table, results, predicted = data["transfer"], {}, []
    for way, bytes_of in BYTES.items():
        rows = [
            Transfer(
                int(row["num_dpus"]), bytes_of[row["benchmark"]] * int(row["size"]), float(row[COLUMN[way]]) * 1e-3
            )
            for row in given
            if row["benchmark"] in bytes_of and float(row[COLUMN[way]]) > 0
        ]
        of_all = bandwidths(rows, START[way])
        split = errors(rows[1::2], START[way], bandwidths(rows[::2], START[way]))
        predicted += split.tolist()
        results[way] = {"mean": float(split.mean()), "p90": float(np.quantile(split, 0.9)), "rows": len(split)}
        table[f"{way}_gb_per_s"] = [round(of_all[dpus] / 1e9, 3) for dpus in DPUS]
        table[f"{way}_start_seconds"] = START[way]
        print(f"{way}: half split: mean {split.mean():.1%}, p90 {np.quantile(split, 0.9):.1%}, {len(split)} rows")
    results["both"] = {
        "mean": float(np.mean(predicted)),
        "p90": float(np.quantile(predicted, 0.9)),
        "rows": len(predicted),
    }
    print(f"both: mean {results['both']['mean']:.1%}, p90 {results['both']['p90']:.1%}, {len(predicted)} rows")
    if options.fit:
        table["provenance"] = (
            "bandwidths of one rank: least relative squares over the measured transfers of the published table; "
            "broadcast: recalled from the PrIM paper; limit of the bus: a guess"
        )
        CALIBRATION.write_text(json.dumps(data, indent=1) + "\n")
    if options.record:
        command = "python benchmarks/prim_transfers.py --hardware upmem_prim_hardware.csv --fit --record"
        record("upmem_transfers", results, command=command)


if __name__ == "__main__":
    main()
