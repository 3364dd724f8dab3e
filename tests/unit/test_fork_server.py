"""Programs of the fork server behave as those of a new interpreter do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server

PROGRAMS = {
    "prints": "import sys; print(sys.argv, __name__, sys.path[0]); print('e', file=sys.stderr)",
    "raises": "def f():\n    raise ValueError('wrong')\nf()",
    "exits": "import sys; sys.exit(7)",
    "says why it exits": "raise SystemExit('no')",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "has work at exit": "import atexit, threading, time\n"
    "atexit.register(print, 'exit')\nthreading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()",
    "destroys what it holds": "class Held:\n    def __del__(self): print('destroyed')\nheld, cycle = Held(), Held()\n"
    "cycle.itself = cycle\nimport ctypes; ctypes.CDLL(None).printf(b'in a buffer of C')",
    "imports": "import torch.nn as nn, torch; print(nn is torch.nn, torch.__spec__.origin, torch.ones(2).tolist())",
    "has no torch before": "import sys, bringup; print('torch' in vars(), hasattr(bringup, 'Driver'))",
    "changes how it prints": "import sys; sys.stdout.reconfigure(errors='replace'); print('x')",
    "reads nothing": "import sys; print(repr(sys.stdin.read()))",
}


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_as_in_a_new_process(code: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(fork_server.ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", code, "one", "two"]
    with open(os.devnull) as nothing:
        new = subprocess.run(
            command, env=environment, cwd=tmp_path, stdin=nothing, capture_output=True, text=True, timeout=60
        )
    for whole_end in (False, True):
        forked = fork_server.server().run(code, ["one", "two"], environment, tmp_path, 60, whole_end)
        assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr), whole_end


def test_importing_torch_activates_by_the_programs_environment() -> None:
    code = "import sys; assert 'bringup' not in vars(); import torch; print(torch.sim.device_count())"
    for count in ("1", "3"):
        env = {**os.environ, "BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": f"devices={count}"}
        assert fork_server.run(code, env=env).stdout == f"{count}\n"


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run("import time; time.sleep(60)", timeout=0.2)
    assert fork_server.run("print(1)").stdout == "1\n"


def test_what_needs_a_new_process_gets_one() -> None:
    server = fork_server.server()
    assert server.can_run({**os.environ, "BRINGUP_SIM": "devices=1"}, "import torch")
    assert not server.can_run({**os.environ, "OMP_NUM_THREADS": "7"}, "import torch")
    assert not server.can_run(dict(os.environ), "import sys; print('torch' in sys.modules)")


def test_commands_of_a_shell(tmp_path: Path) -> None:
    folder = fork_server.commands(tmp_path / "commands")
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "BRINGUP_DRIVERS": "sim"}
    script = "python -c 'import torch; print(torch.sim.is_available())' && bringup include && python -c 'print(5)'"
    done = subprocess.run(["bash", "-ec", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["True", str(fork_server.ROOT / "bringup" / "include"), "5"], done.stderr
    failing = subprocess.run(["bash", "-c", "python -c 'torch = 1; exit(3)'"], env=env, timeout=60)
    assert failing.returncode == 3
