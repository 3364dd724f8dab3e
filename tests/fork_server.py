"""Runs programs in fresh processes that are forked from one that has imported torch, which takes 2 s of CPU each time.

A program sees what ``python -c`` would show it: ``import torch`` runs device autoload under the program's own
environment, at the line where the program has it. Of bringup only ``ir`` and ``targets`` are there before, which hold
no state and read no variable when they are imported: 0.1 s, most of it for dataclasses. The interpreter starts and ends
as usual, up to the end of torch itself. Variables that torch or Python read when they start, and programs that look at
what is imported, need a process of their own, and ``run`` gives them one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.abc
import importlib.machinery
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.optional_packages import need_the_command

ROOT = Path(__file__).resolve().parents[1]
#: Imported ahead: what the first op on a device and torch.compile import from torch; and what the tests' programs do.
AHEAD = """
    pytest torch torch._decomp torch._dynamo torch._meta_registrations torch.export torch.fx.passes.infra.pass_base
""".split()
#: PyTorch's samples of its operators, for a server of its own: 2.5 s, and it changes settings of torch.
OP_DB = "torch.testing._internal.common_methods_invocations"
#: Taken from the server one by one, when a program imports them; they need nothing else of bringup.
PURE = ("bringup.cache_directory", "bringup.ir", "bringup.targets")
PURE_AHEAD = ["bringup.targets.c.render", "bringup.targets.toolchain", "bringup.ir.verify"]
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: These are read when they are needed.
READ_LATER = {AUTOLOAD, "TORCH_EXTENSIONS_DIR"}
#: Variables with these beginnings are read once, at the start of Python, torch or the C library.
READ_AT_START = ("ATEN", "CUDA", "KMP", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS", "PYTHON", "PYTORCH_", "TORCH_")
MESSAGE_BYTES = 1 << 20
#: What Triton's bindings print when a process ends that has imported it: the server has, by way of torch._dynamo.
TRITON_AT_EXIT = re.compile(r"nanobind: leaked .*?refleaks\.html\n?", re.DOTALL)
#: ``python -m MODULE``.
MODULE = "import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
COMMAND = MODULE.format("bringup")
#: ``python PATH``.
SCRIPT = "import os, runpy, sys; sys.path[0] = os.path.dirname({0!r}); runpy.run_path({0!r}, run_name='__main__')"
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
request = json.dumps([words[1], words[2:], dict(os.environ), os.getcwd(), [1, 2], False]).encode()
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
    ahead: Sequence[str] = (),
    whole_end: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -c CODE ARGUMENTS`` in the environment ``env``; ``fresh`` insists on a new interpreter.

    ``ahead`` names more modules of torch that the process it is forked from has imported; ``whole_end`` destroys torch
    too when the program ends (EarlyEnd says what is left out otherwise).
    """
    environment = dict(os.environ if env is None else env)
    if not fresh and server(*ahead).can_run(environment, code):
        return server(*ahead).run(code, arguments, environment, cwd, timeout, whole_end)
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


def start_supervisor(code: str, report_fd: int, log: IO[bytes], env: Mapping[str, str]) -> Program | None:
    """Starts the supervisor of an op check (op_workers.py) that has op_db; None where it needs a process of its own."""
    if not server(OP_DB).can_run(env, code):
        return None
    given, kept = os.pipe()
    files = {0: given, 1: log.fileno(), 2: log.fileno(), report_fd: report_fd}
    program = Program(server(OP_DB), code, (), env, Path.cwd(), files)
    os.close(given)
    program.stdin = os.fdopen(kept, "wb")
    return program


_servers: list[ForkServer] = []


@cache
def server(*ahead: str) -> ForkServer:
    """This process's server, which ends with it; one for each choice of modules."""
    started = ForkServer(ahead)
    _servers.append(started)
    atexit.register(started.close)
    return started


def cpu_seconds() -> float:
    """User and system time of the servers, if there are any, and of the programs that they have run."""
    return sum(server.cpu_seconds() for server in _servers)


class Program:
    """A program that a server has started, with methods of ``subprocess.Popen``."""

    stdin: IO[bytes] | None = None

    def __init__(
        self,
        server: ForkServer,
        code: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        files: Mapping[int, int],
        whole_end: bool = False,
    ) -> None:
        """``files`` are descriptors by the number that they have in the program."""
        self.args = [sys.executable, "-c", code, *arguments]
        self.returncode: int | None = None
        self._server = server
        self._answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.connect(server.path)
        request = json.dumps([code, list(arguments), dict(environment), str(cwd), list(files), whole_end]).encode()
        socket.send_fds(self._answers, [request], list(files.values()))
        self.pid = int(self._answer())

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; after ``timeout`` seconds the program is ended and TimeoutExpired raised."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._answer())
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            finally:
                self._answers.close()
        return self.returncode

    def terminate(self) -> None:
        """Asks it to end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def _answer(self) -> bytes:
        answer = self._answers.recv(64)
        assert answer, f"the fork server ended with status {self._server.process.wait()}"
        return answer


class ForkServer:
    """The process that forks; programs run one after the other."""

    def __init__(self, ahead: Sequence[str] = ()) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("BRINGUP_")}
        self.folder = tempfile.TemporaryDirectory(prefix="bringup-fork-server-")
        self.path = f"{self.folder.name}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(listener.fileno()), *ahead],
                cwd=ROOT,
                env={**self.environment, AUTOLOAD: "0"},
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,  # its end is the server's
                stdout=subprocess.DEVNULL,  # not a terminal, so that the programs' output is not either
            )

    def can_run(self, environment: Mapping[str, str], code: str) -> bool:
        """Whether a forked process does what a new one would."""
        names = {*environment, *self.environment} - READ_LATER
        if _folders(environment) >= _folders(self.environment):
            names -= {"PYTHONPATH"}  # what it adds is added
        changed = {name for name in names if environment.get(name) != self.environment.get(name)}
        looks = re.search(r"sys\.modules(?!\[)", code)  # not only at a module that it knows to be there
        return not looks and not any(name.startswith(READ_AT_START) for name in changed)

    def run(
        self,
        code: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        timeout: float,
        whole_end: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """What ``subprocess.run([python, "-c", code, *arguments])`` returns, with its output as text."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            files = {1: out.fileno(), 2: err.fileno()}
            program = Program(self, code, arguments, environment, cwd, files, whole_end)
            status = program.wait(timeout)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(TRITON_AT_EXIT.sub("", file.read()))
        return subprocess.CompletedProcess(program.args, status, *texts)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def _folders(environment: Mapping[str, str]) -> set[str]:
    return set(environment.get("PYTHONPATH", "").split(os.pathsep)) - {""}


# ---- in the server ----
class Later(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Takes modules out of ``sys.modules`` until the program imports them; with torch, device autoload runs."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] in ("torch", "bringup")]
        modules = {name: sys.modules.pop(name) for name in names}
        self.torch = {name: module for name, module in modules.items() if not name.startswith("bringup")}
        self.one_by_one = {name: module for name, module in modules.items() if name.startswith(PURE)}
        self.one_by_one["torch"] = self.torch["torch"]
        self.specs = {name: module.__spec__ for name, module in self.one_by_one.items()}

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        original = self.specs.get(name)
        if original is None:
            return None
        folders = original.submodule_search_locations
        spec = importlib.machinery.ModuleSpec(name, self, origin=original.origin, is_package=folders is not None)
        spec.submodule_search_locations = folders
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.one_by_one[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.specs.pop(module.__name__)
        if module.__name__ == "torch":
            sys.modules.update(self.torch)
            if module._is_device_backend_autoload_enabled():
                module._import_device_backends()


class EarlyEnd:
    """Leaves out what a program's end would do to torch: 0.2 s, most of it for copies of pages that are written to.

    The program's own modules, bringup's among them, and the libraries that it has loaded come to their end as usual;
    then the process is gone, before torch's modules and static objects are destroyed.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.before = set(sys.modules)
        self.modules: dict[str, types.ModuleType] = {}
        atexit.register(self.hide)  # made before torch is imported: the first to be registered is the last to run

    def imported(self) -> None:
        """Takes note of what has been imported since."""
        names = set(sys.modules) - self.before - sys.stdlib_module_names
        self.modules = {name: sys.modules[name] for name in names}

    def want(self) -> None:
        """Called in a program's process, before its first line."""
        self.wanted = True
        c = ctypes.CDLL(None)
        c.on_exit(c._exit, None)  # after everything that is registered later
        c["__cxa_atexit"](c.fflush, None, None)

    def hide(self) -> None:
        if self.wanted:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.modules))
            for name in self.modules:
                sys.modules.pop(name, None)


def serve(listener: socket.socket, ahead: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Forks for every request; returns in the forked processes only, with a program to run and its arguments."""
    end = EarlyEnd()
    for name in (*AHEAD, *PURE_AHEAD, *ahead):
        importlib.import_module(name)
    end.imported()
    gc.freeze()  # collections in the programs leave these objects, and so their pages, alone
    while True:
        if listener not in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 8)
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
    code, arguments, environment, cwd, places, whole_end = json.loads(request)
    away = [fcntl.fcntl(file, fcntl.F_DUPFD, 256) for file in files]  # from the numbers that are wanted
    for file in files:
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for place, file in zip(places, away):
        os.dup2(file, place)
        os.close(file)
    for place, name in ((1, "stdout"), (2, "stderr")):  # the server's remember whether their own file could seek
        old = getattr(sys, name)
        binary = open(place, "wb", closefd=False)  # noqa: SIM115
        fresh = io.TextIOWrapper(binary, old.encoding, old.errors, line_buffering=old.line_buffering)
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if not whole_end:
        end.want()
    return code, arguments


def as_main(code: str, arguments: list[str]) -> None:
    """Runs the program as ``python -c`` does."""
    sys.argv[:] = ["-c", *arguments]
    sys.path[0] = ""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    sys.meta_path.insert(0, Later())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this function's line
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    try:
        program = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    except KeyboardInterrupt:
        os._exit(0)
    as_main(*program)
