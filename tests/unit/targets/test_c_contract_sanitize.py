"""A few contractions under the address and undefined-behaviour sanitizers: buffers of exactly the size they need."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import Array, DType, bfloat16, float32
from bringup.ir.index import evaluate_sizes
from bringup.ir.interpret import run
from tests.unit.targets.c_contract_cases import HOST, conv_kernel, matrix_kernel, parsed, rendered
from tests.unit.targets.test_c_contract import matrices
from tests.unit.targets.test_c_contract_conv import SHAPES, images

FLAGS = ["-O1", "-std=gnu11", "-ffp-contract=off", "-fwrapv", "-w", "-fsanitize=address,undefined"]

_MAIN = """
#include <stdio.h>
#include <stdlib.h>
static uint64_t load(const char *path, size_t size) {
  char *memory = malloc(size);
  FILE *file = fopen(path, "rb");
  if (fread(memory, 1, size, file) != size) exit(3);
  fclose(file);
  return (uint64_t)memory;
}
int main(void) {
  const uint64_t args[] = {ARGS};
  int64_t report[3] = {0};
  for (int64_t unit = UNITS - 1; unit >= 0; unit--) ENTRY(args, unit, unit + 1, report);
  FILE *file = fopen("result", "wb");
  fwrite((void *)args[RESULT], 1, BYTES, file);
  fclose(file);
  free((void *)args[0]), free((void *)args[1]), free((void *)args[2]);
  return report[0] != 0;
}
"""


def sanitized(folder: Path, text: str, arrays: Mapping[str, Array], sizes: Mapping[str, int], result: str) -> None:
    kernel = parsed(text)
    source = rendered(text)
    known = bind_sizes(kernel, arrays, sizes)
    words = []
    for buffer in kernel.buffers:
        array = arrays[buffer.name]
        flat = np.lib.stride_tricks.as_strided(array, (array.size,), (array.itemsize,))
        (folder / buffer.name).write_bytes(flat.tobytes())
        words.append(f'load("{buffer.name}", {flat.nbytes})')
    words += [f"{known[size.name]}" for size in kernel.sizes]
    at = [buffer.name for buffer in kernel.buffers].index(result)
    values = {"ARGS": ", ".join(words), "UNITS": evaluate_sizes(source.units, known), "ENTRY": source.entry}
    main = _MAIN
    for name, value in {**values, "RESULT": at, "BYTES": arrays[result].nbytes}.items():
        main = main.replace(name, str(value))
    (folder / "program.c").write_text(source.text + main)
    march = [f"-march={HOST.isa}"] if HOST.isa else []
    command = ["cc", *FLAGS, *march, "program.c", "-o", "program"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(["./program"], cwd=folder, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    expected = {name: np.copy(array, order="K") for name, array in arrays.items()}
    run(kernel, expected, sizes)
    flat = np.lib.stride_tricks.as_strided(expected[result], (expected[result].size,), (expected[result].itemsize,))
    assert (folder / "result").read_bytes() == flat.tobytes()


@pytest.mark.parametrize(
    ("layout", "lanes", "shape"),
    [("nn", 1, (29, 17, 35)), ("tn", 1, (1, 20, 150)), ("nt", 1, (14, 800, 40)), ("nt", 32, (3, 40, 7))],
)
def test_matrices(tmp_path: Path, layout: str, lanes: int, shape: tuple[int, int, int]) -> None:
    sanitized(tmp_path, matrix_kernel(layout, lanes=lanes), matrices(layout, *shape), {}, "y")


@pytest.mark.parametrize(
    ("layout", "kind", "dtype", "stride"),
    [
        ("nchw", "forward", float32, 1),
        ("nchw", "forward", float32, 2),
        ("nhwc", "forward", bfloat16, 1),
        ("nchw", "weight", float32, 1),
    ],
)
def test_convolutions(tmp_path: Path, layout: str, kind: str, dtype: DType, stride: int) -> None:
    arrays, sizes = images(layout, SHAPES[0], stride, 1, dtype)
    text = conv_kernel(stride, 1, layout, kind, dtype.name)
    sanitized(tmp_path, text, arrays, sizes, "y" if kind == "forward" else "f")
