"""Compiled kernels on disk: found again by what they were made from, shared by all processes of one user.

An entry is one file, named by the hash of everything that decided its bytes. It is written beside its place and then
renamed, so that a reader sees all of it or nothing; it carries its own checksum, so that a damaged one is built again.
Nothing here can stop a kernel from working: without a usable directory the binaries are kept in memory, after one
warning.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bringup import __version__, user_code
from bringup.cache_directory import FAILED, UnsafeDirectory, cache_directory, check_private, open_private
from bringup.targets.source import GENERATOR_VERSION

if TYPE_CHECKING:
    from bringup.driver import Driver

_MAGIC = b"bringup kernel 1\n"
_HEADER = len(_MAGIC) + hashlib.sha256().digest_size
_DEFAULT_LIMIT = 1 << 30
_SUFFIX = ".kernel"
_COUNTS = "hits"
_PACKAGE = Path(__file__).resolve().parents[1]
#: What decides the source, the work units and the cost of a kernel.
_FOLDERS = ("ir", "targets")
#: A file's time is renewed when a hit finds it older than this: the order of eviction need not be finer.
_RENEW_SECONDS = 3600.0
#: Old files are looked for once per this part of the limit written, and then this part is left free.
_SLACK = 1 / 16


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds, and how often all processes together asked it."""

    path: str
    entries: int
    nbytes: int
    limit: int
    hits: int
    misses: int
    problem: str  # why nothing is kept on disk; empty: nothing is wrong


@functools.cache
def generation() -> str:
    """Which kernel compiler this is: a hash of its sources, so that nothing an earlier one made is taken for ours.

    Read once per process (3 ms). A change of any file in ``ir/`` and ``targets/`` is another compiler.

    >>> len(generation())
    64
    """
    digest = hashlib.sha256(__version__.encode())
    for folder in _FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*")):
            if path.suffix != ".pyc" and path.is_file():
                digest.update(f"\n{path.relative_to(_PACKAGE).as_posix()}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def entry_key(*parts: str) -> str:
    """The name of what these texts decide; no two different lists of texts share one.

    >>> entry_key("ab", "c") == entry_key("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def parse_size(text: str) -> int:
    """``512M`` in bytes.

    >>> parse_size("2K")
    2048
    """
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    digits = text.strip().upper()
    factor = factors.get(digits[-1:], 1)
    number = digits[:-1] if factor > 1 else digits
    if not number.isascii() or not number.isdigit():
        raise ValueError(f"BRINGUP_CACHE_SIZE={text}: allowed is a whole number with K, M, G, T or no suffix")
    return int(number) * factor


class KernelCache:
    """The binaries under one directory; ``directory`` None keeps them in memory only.

    >>> cache = KernelCache(Path("/home/me/.cache/bringup"))  # doctest: +SKIP
    >>> cache.get(entry_key(source)) or compile_and_put()  # doctest: +SKIP
    """

    def __init__(self, directory: Path | None, limit: int = _DEFAULT_LIMIT) -> None:
        self.directory = directory
        self.limit = limit
        self.hits = self.misses = 0
        self.problem = ""
        self._folder: int | None = None
        self._refused = False
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    # ---- one entry ----
    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key, or None: not there, damaged, or not to be trusted."""
        data = self._memory.get(key)
        if data is None and self._open():
            data = self._read(key)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data

    def has(self, key: str) -> bool:
        """Whether there is something under a key, without reading or counting it."""
        if key in self._memory:
            return True
        if not self._open():
            return False
        try:
            os.stat(key + _SUFFIX, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Stores bytes for other processes; where that fails, for this one."""
        if self._open() and self._write(key, data):
            # By the key's own digits and not by a random number: those belong to the user's seeds.
            if int(key[:8], 16) / 2**32 * self.limit * _SLACK <= len(data):
                self.evict()
        else:
            self._memory[key] = data

    def _read(self, key: str) -> bytes | None:
        name = key + _SUFFIX
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                status = os.fstat(descriptor)
                check_private(status, f"{self.directory}/{name}")
                content = os.read(descriptor, status.st_size) if stat.S_ISREG(status.st_mode) else b""
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except (OSError, UnsafeDirectory) as error:
            self._warn(str(error))
            return None
        data = content[_HEADER:]
        if content[:_HEADER] != _MAGIC + hashlib.sha256(data).digest():
            self._remove(name)  # cut short or changed: the next put writes it anew
            return None
        if time.time() - status.st_mtime > _RENEW_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(name, dir_fd=self._folder)
        return data

    def _write(self, key: str, data: bytes) -> bool:
        temporary = f"{key}.{os.getpid()}.{next(self._numbers)}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600, dir_fd=self._folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(data).digest() + data)
                os.replace(temporary, key + _SUFFIX, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except BaseException:
                self._remove(temporary)
                raise
        except OSError as error:
            self._warn(f"cannot write {self.directory}: {error.strerror}")
            return False
        return True

    def _remove(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._folder)
        except OSError:
            return False
        return True

    # ---- the directory ----
    def _open(self) -> bool:
        if self._folder is not None:
            try:
                if os.fstat(self._folder).st_nlink:
                    return True
            except OSError:
                return False
        if self.directory is None or self._refused:
            return False
        with self._lock:
            try:
                # Also after the directory was removed under us; the old descriptor may be in use by a thread.
                self._folder = open_private(self.directory)
            except (OSError, UnsafeDirectory) as error:
                self._refused = True
                self._warn(str(error))
        return not self._refused

    def _warn(self, reason: str) -> None:
        """Says once what is wrong: kernels work on, and repeating it after every op would not help."""
        if not self.problem:
            self.problem = reason
            user_code.warn(f"bringup: the disk cache of kernels does not work: {reason}")

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        if not self._open() or self._folder is None:
            return
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # gone since
                    yield entry.name, os.stat(entry.name, dir_fd=self._folder, follow_symlinks=False)

    def evict(self) -> int:
        """Removes the entries that were not used for longest until the cache is within its limit; how many."""
        files, removed, now = [], 0, time.time()
        try:
            for name, status in self._files():
                if name.endswith(_SUFFIX):
                    files.append((status.st_mtime, name, status.st_size))
                elif name.endswith(".new") and now - status.st_mtime > _RENEW_SECONDS:
                    self._remove(name)  # of a process that was killed while it wrote
        except OSError as error:
            self._warn(f"cannot list {self.directory}: {error.strerror}")
            return 0
        total = sum(size for _, _, size in files)
        if total <= self.limit:
            return 0
        for _, name, size in sorted(files):
            if total <= self.limit * (1 - _SLACK):
                break
            removed += self._remove(name)
            total -= size
        return removed

    def clear(self) -> int:
        """Removes every entry, the counts and the sources that did not compile; how many entries there were."""
        self._memory.clear()
        removed = 0
        for name, _ in list(self._files()):
            if name.endswith(_SUFFIX):
                removed += self._remove(name)
            elif name.endswith(".new") or name == _COUNTS:
                self._remove(name)
            elif name == FAILED and self.directory is not None:
                shutil.rmtree(self.directory / name, ignore_errors=True)
        return removed

    # ---- counts of all processes ----
    def info(self) -> CacheInfo:
        """Entries, bytes, and the hits of every process that has ended, and of this one."""
        sizes = [status.st_size for name, status in self._files() if name.endswith(_SUFFIX)]
        hits, misses = self._counted()
        return CacheInfo(
            path=str(self.directory) if self.directory is not None else "off",
            entries=len(sizes) + len(self._memory),
            nbytes=sum(sizes) + sum(map(len, self._memory.values())),
            limit=self.limit,
            hits=hits + self.hits,
            misses=misses + self.misses,
            problem=self.problem,
        )

    def _counted(self) -> tuple[int, int]:
        hits = misses = 0
        try:
            descriptor = os.open(_COUNTS, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        except (OSError, TypeError):
            return 0, 0
        with open(descriptor, "rb") as file:
            for line in file:
                words = line.split()
                if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                    hits, misses = hits + int(words[0]), misses + int(words[1])
        return hits, misses

    def save_counts(self) -> None:
        """Adds this process's hits and misses to the file all processes share: one short line, appended at once."""
        hits, misses, self.hits, self.misses = self.hits, self.misses, 0, 0
        if self._folder is None or not hits + misses:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(_COUNTS, flags, 0o600, dir_fd=self._folder)
            with contextlib.closing(open(descriptor, "ab", buffering=0)) as file:
                file.write(b"%d %d\n" % (hits, misses))


# ---- the cache of this process ----
_default: KernelCache | None = None
_default_lock = threading.Lock()
_compiling: dict[str, threading.Lock] = {}


def default_cache() -> KernelCache:
    """The cache that the environment describes, made on first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = KernelCache(cache_directory())
            try:
                _default.limit = parse_size(os.environ.get("BRINGUP_CACHE_SIZE", "") or "1G")
            except ValueError as error:
                user_code.warn(f"bringup: {error}; 1G is used")
            atexit.register(_default.save_counts)
        return _default


def compiled(driver: Driver, source: str, compile_source: Callable[[str], bytes] | None = None) -> bytes:
    """What ``driver.compile(source)`` makes, from the disk cache where some process has made it before.

    ``compile_source`` stands in for the driver's function: to see whether it is called, and how long it takes.

    >>> binary = compiled(driver, "void k(…) {…}")  # doctest: +SKIP
    """
    build = compile_source or (lambda text: binary_of(driver, text))
    return kept(driver_key(driver, str(GENERATOR_VERSION), source), lambda: build(source))


class WrongBinary(TypeError):
    """A driver's ``compile`` returned something else than bytes: no kernel could ever be made."""


def binary_of(driver: Driver, source: str) -> bytes:
    """What ``driver.compile(source)`` returns; anything but bytes is a mistake in the driver, and says so."""
    binary = driver.compile(source)
    if not isinstance(binary, (bytes, bytearray)):
        given = "None" if binary is None else f"an object of type {type(binary).__name__}"
        raise WrongBinary(f"driver '{driver.name}': compile returned {given}; it must return the binary as bytes")
    return bytes(binary)


def driver_key(driver: Driver, *parts: str) -> str:
    """The name of what these texts decide on a driver, with its compiler as it is now."""
    return entry_key(driver.name, driver.target(), driver.compiler_identity(), *parts)


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """What ``make()`` gives, from the disk cache where some process has made it before.

    Two threads that ask for the same at once make it once.
    """
    cache = default_cache()
    data = cache.get(key)
    if data is not None:
        return data
    with _default_lock:
        waiting = key in _compiling
        turn = _compiling.setdefault(key, threading.Lock())
    with turn:
        try:
            # Also where another thread began and ended between our look and our turn.
            data = cache.get(key) if waiting or cache.has(key) else None
            if data is None:
                data = make()
                cache.put(key, data)
        finally:
            with _default_lock:
                _compiling.pop(key, None)
    return data


def _in_forked_child() -> None:
    """Another thread of the parent may have held the locks; what the parent counted is the parent's to save."""
    global _default_lock
    _default_lock = threading.Lock()
    _compiling.clear()
    if _default is not None:
        _default.hits = _default.misses = 0


os.register_at_fork(after_in_child=_in_forked_child)
