"""Runs programs in fresh processes that are forked from one that has imported torch, which takes 2 s of CPU each time.

A program sees what ``python -c`` would show it: ``import torch`` runs device autoload under the program's own
environment, at the line where the program has it; nothing of bringup is imported before. The interpreter starts and
ends as usual. Variables that torch or Python read when they start, and programs that look at what is imported, need a
process of their own, and ``run`` gives them one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.abc
import importlib.machinery
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.optional_packages import need_the_command

ROOT = Path(__file__).resolve().parents[1]
#: Imported ahead: what the first op on a device and torch.compile import from torch.
AHEAD = """
    torch torch._decomp torch._dynamo torch._meta_registrations torch.export torch.fx.passes.infra.pass_base
""".split()
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Variables with these beginnings are read once, at the start of Python, torch or the C library.
READ_AT_START = ("ATEN", "CUDA", "KMP", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS", "PYTHON", "PYTORCH_", "TORCH_")
MESSAGE_BYTES = 1 << 20
#: ``python -m bringup``.
COMMAND = "import runpy; runpy.run_module('bringup', run_name='__main__', alter_sys=True)"
#: The programs of ``commands``; they import little, so that they start in 20 ms.
CLIENT = f"""
import json, os, socket, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "bringup":
    words = ["-c", {COMMAND!r}, *words]
elif words[:1] != ["-c"] or "torch" not in words[1]:
    os.execv({{python!r}}, [{{python!r}}, *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({{server!r}})
request = json.dumps([words[1], words[2:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [request], [1, 2])
server.recv(64)
status = int(server.recv(64))
sys.exit(status if status >= 0 else 128 - status)
"""


# ---- in pytest's process ----
def run(
    code: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout: float = 120,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -c CODE ARGUMENTS`` in the environment ``env``; ``fresh`` insists on a new interpreter."""
    environment = dict(os.environ if env is None else env)
    if not fresh and server().can_run(environment, code):
        return server().run(code, arguments, environment, cwd, timeout)
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment)


def run_bringup(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m bringup ARGUMENTS``; skips the test where the command's packages are not installed."""
    need_the_command()
    return run(COMMAND, *arguments, env=env, cwd=cwd, timeout=timeout)


def commands(folder: Path) -> Path:
    """Writes programs ``python`` and ``bringup`` for shell scripts into a folder: they hand their work to the server.

    A script may run one at a time, not two with a pipe between them. Programs that do not name torch run as usual.
    """
    folder.mkdir()
    for name in ("python", "bringup"):
        path = folder / name
        path.write_text(f"#!{sys.executable} -IS\n" + CLIENT.format(server=server().path, python=sys.executable))
        path.chmod(0o755)
    return folder


@cache
def server() -> ForkServer:
    """This process's server, which ends with it."""
    started = ForkServer()
    atexit.register(started.close)
    return started


def cpu_seconds() -> float:
    """User and system time of the server, if there is one, and of the programs that it has run."""
    return server().cpu_seconds() if server.cache_info().currsize else 0.0


class ForkServer:
    """The process that forks; programs run one after the other."""

    def __init__(self) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("BRINGUP_")}
        self.folder = tempfile.TemporaryDirectory(prefix="bringup-fork-server-")
        self.path = f"{self.folder.name}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(listener.fileno())],
                cwd=ROOT,
                env={**self.environment, AUTOLOAD: "0"},
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,  # its end is the server's
                stdout=subprocess.DEVNULL,  # not a terminal, so that the programs' output is not either
            )

    def can_run(self, environment: Mapping[str, str], code: str) -> bool:
        """Whether a forked process does what a new one would."""
        names = {*environment, *self.environment} - {AUTOLOAD}
        changed = {name for name in names if environment.get(name) != self.environment.get(name)}
        return "sys.modules" not in code and not any(name.startswith(READ_AT_START) for name in changed)

    def run(
        self, code: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What ``subprocess.run([python, "-c", code, *arguments])`` returns, with its output as text."""
        words = [sys.executable, "-c", code, *arguments]
        request = json.dumps([code, list(arguments), dict(environment), str(cwd)]).encode()
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as answers,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            answers.connect(self.path)
            socket.send_fds(answers, [request], [out.fileno(), err.fileno()])
            child = int(self._answer(answers))
            answers.settimeout(timeout)
            try:
                status = int(self._answer(answers))
            except TimeoutError:
                os.kill(child, 9)
                raise subprocess.TimeoutExpired(words, timeout) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        return subprocess.CompletedProcess(words, status, *texts)

    def _answer(self, answers: socket.socket) -> bytes:
        answer = answers.recv(64)
        assert answer, f"the fork server ended with status {self.process.wait()}"
        return answer

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


# ---- in the server ----
class TorchLater(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Takes torch out of ``sys.modules``; the program's ``import torch`` puts it back and runs device autoload."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "torch"]
        self.modules = {name: sys.modules.pop(name) for name in names}
        self.spec = self.modules["torch"].__spec__

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=self.spec.origin, is_package=True)
        spec.submodule_search_locations = self.spec.submodule_search_locations
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.modules["torch"]

    def exec_module(self, torch: types.ModuleType) -> None:
        torch.__spec__ = self.spec
        sys.modules.update(self.modules)
        sys.meta_path.remove(self)
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()


def serve(listener: socket.socket) -> tuple[str, list[str]]:
    """Forks for every request; returns in the forked processes only, with a program to run and its arguments."""
    for name in AHEAD:
        importlib.import_module(name)
    gc.freeze()  # collections in the programs leave these objects, and so their pages, alone
    while True:
        if listener not in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
        child = os.fork()
        if child == 0:
            break
        for file in files:
            os.close(file)
        with connection, contextlib.suppress(BrokenPipeError):  # nobody waits any more
            connection.send(str(child).encode())
            connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    if "triton" in sys.modules:  # of torch with CUDA; since 3.9 it prints what is left of its objects at exit as leaks
        atexit.register(gc.unfreeze)
    listener.close()
    connection.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for place, file in enumerate(files, 1):
        os.dup2(file, place)
        os.close(file)
    code, arguments, environment, cwd = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    return code, arguments


def as_main(code: str, arguments: list[str]) -> None:
    """Runs the program as ``python -c`` does."""
    sys.argv[:] = ["-c", *arguments]
    sys.path[0] = ""
    sys.meta_path.insert(0, TorchLater())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this function's line
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    try:
        program = serve(socket.socket(fileno=int(sys.argv[1])))
    except KeyboardInterrupt:
        os._exit(0)
    as_main(*program)
