"""Step 2: kernels. bringup writes them in C, the chip's compiler is the host's."""

import ctypes
import tempfile

from bringup.targets.toolchain import compile_c, host_target, identity
from heron import memory


class Driver(memory.Driver):
    def __init__(self):
        super().__init__()
        self.functions = []

    def target(self):
        return host_target().describe()

    def compile(self, source):
        return compile_c(source, host_target())

    def compiler_identity(self):
        return identity(host_target())

    def load(self, device, binary, entry):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(binary)
            file.flush()
            function = getattr(ctypes.CDLL(file.name), entry)
        with self.lock:
            self.functions.append(function)
            return len(self.functions)

    def launch(self, device, kernel, launch):
        args = (ctypes.c_uint64 * len(launch.args))(*launch.args)
        report = (ctypes.c_int64 * 3)()
        self.functions[kernel - 1](args, ctypes.c_int64(0), ctypes.c_int64(launch.grid), report)
        if report[0]:
            raise IndexError(f"index {report[1]} is out of range for a dimension of {report[2]}")
        return True  # nothing of it is left to run
