"""Programs: temporaries, read-backs and outputs whose size the device decides."""

import numpy as np
import pytest

from bringup.ir.arguments import InterpretError
from bringup.ir.dtypes import float32, int64
from bringup.ir.index import Int, Size
from bringup.ir.interpret import run
from bringup.ir.parser import parse
from bringup.ir.program import Launch, Program, ReadBack, Tensor, run_program
from bringup.ir.verify import verify
from tests.unit.ir.written_kernels import kernel

COUNT = parse("""kernel count
  size n
  in x: float32[n] strides [1]
  out position: int64[n] strides [1]
  out total: int64[1] strides [1]
  {
    loop i < n carry (seen) from (int64(0)) {
      store position[i] = where((x[i] != float32(0.0)), seen, int64(-1))
      next ((seen + int64((x[i] != float32(0.0)))))
    }
    store total[0] = seen
  }""")
FILL = parse("""kernel fill
  size n
  size found
  in position: int64[n] strides [1]
  inout places: int64[found] strides [1]
  grid i < n
  {
    store ordered places[asindex(position[i], found, skip)] = index(i)
  }""")
NONZERO = Program(
    "nonzero",
    inputs=(Tensor("x", float32, (Size("n"),)),),
    temporaries=(Tensor("position", int64, (Size("n"),)), Tensor("total", int64, (Int(1),))),
    steps=(Launch(COUNT), ReadBack("found", "total"), Launch(FILL)),
    outputs=(Tensor("places", int64, (Size("found"),)),),
)


def test_nonzero_counts_reads_back_and_fills():
    verify(COUNT)
    verify(FILL)
    for x in ([0, 3, 0, 0, -1, 2], [0, 0], [], [5]):
        values = np.array(x, np.float32)
        assert run_program(NONZERO, {"x": values})["places"].tolist() == np.flatnonzero(values).tolist()


def test_errors_name_the_program_and_the_tensor():
    with pytest.raises(InterpretError, match="nonzero: input x is float64"):
        run_program(NONZERO, {"x": np.zeros(3)})
    late = Program("late", NONZERO.inputs, NONZERO.outputs, (Launch(FILL),), NONZERO.temporaries)
    with pytest.raises(InterpretError, match="late: fill needs places, not allocated yet"):
        run_program(late, {"x": np.zeros(3, np.float32)})


def test_launch_arguments_are_checked():
    softmax, x = kernel("softmax"), np.zeros((2, 3), np.float32)
    with pytest.raises(InterpretError, match="softmax: y has shape"):
        run(softmax, {"x": x, "y": np.zeros((2, 4), np.float32)})
    with pytest.raises(InterpretError, match="x is float64"):
        run(softmax, {"x": x.astype(np.float64), "y": x.copy()})
    ones = np.ones(3, np.float32)
    with pytest.raises(InterpretError, match="no value for eps"):
        run(kernel("layer_norm"), {"x": x, "w": ones, "b": ones, "y": x.copy()})
