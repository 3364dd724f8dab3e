"""The disk cache of kernels: found again, shared by processes, never trusted blindly, never in the way."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bringup import cache_directory, cli
from bringup.compile import kernel_cache
from bringup.compile.kernel_cache import KernelCache, compiled, entry_key, parse_size
from bringup.driver import Driver

KEY = entry_key("a source")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> KernelCache:
    return KernelCache(folder)


@pytest.fixture
def process_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the process, in a new folder."""
    monkeypatch.setenv("BRINGUP_CACHE", str(folder))
    monkeypatch.setattr(kernel_cache, "_default", None)
    return folder


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.kernel"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- entries ----
@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 400], ids=["empty", "a byte", "100 kB"])
def test_what_was_put_is_found_by_another_process(cache, folder, data):
    assert cache.get(KEY) is None
    cache.put(KEY, data)
    assert cache.get(KEY) == data
    assert KernelCache(folder).get(KEY) == data
    assert (cache.hits, cache.misses) == (1, 1)
    assert files(folder) == [entry(folder).name]  # nothing temporary is left


def test_a_key_is_a_list_of_texts(cache):
    texts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("1:a", "b"), ()]
    assert len({entry_key(*parts) for parts in texts}) == len(texts)


def test_directory_and_entries_are_private(cache, folder):
    cache.put(KEY, b"code")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry(folder).stat().st_mode & 0o777 == 0o600


def test_getting_an_entry_takes_well_under_a_millisecond(cache):
    cache.put(KEY, os.urandom(16384))
    best = min(_seconds(lambda: cache.get(KEY)) for _ in range(50))
    assert best < 0.5e-3


def _seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# ---- damage ----
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign", "longer"])
def test_a_damaged_entry_is_built_again(cache, folder, damage):
    cache.put(KEY, b"code" * 100)
    content = entry(folder).read_bytes()
    changed = {
        "cut": content[:-1],
        "changed": content[:-1] + b"X",
        "empty": b"",
        "foreign": b"\x7fELF and so on",
        "longer": content + b"code",
    }[damage]
    entry(folder).write_bytes(changed)
    assert cache.get(KEY) is None
    assert not entry(folder).exists()
    cache.put(KEY, b"new code")
    assert cache.get(KEY) == b"new code"


def test_an_entry_that_others_can_write_is_not_used(cache, folder):
    cache.put(KEY, b"code")
    entry(folder).chmod(0o666)
    with pytest.warns(RuntimeWarning, match="can be written by other users"):
        assert cache.get(KEY) is None


def test_a_link_to_somebody_elses_file_is_not_followed(cache, folder, tmp_path):
    data = b"code"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(kernel_cache._MAGIC + hashlib.sha256(data).digest() + data)
    folder.mkdir(mode=0o700)
    entry(folder).symlink_to(elsewhere)
    with pytest.warns(RuntimeWarning, match="does not work"):
        assert cache.get(KEY) is None


# ---- directories that cannot be used: one warning, and kernels work from memory ----
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write_is_refused(cache, folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    _works_in_memory(cache, "can be written by other users")
    assert files(folder) == []


def test_a_directory_of_another_user_is_refused(cache, folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    _works_in_memory(cache, "belongs to user .*, not to you")
    assert files(folder) == []


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    _works_in_memory(KernelCache(tmp_path / "file" / "cache"), "file")
    _works_in_memory(KernelCache(tmp_path / "file"), "file")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_is_one_warning(cache, folder, monkeypatch, code):
    cache.put(KEY, b"before")

    def refuse(*arguments, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    other = entry_key("another")
    with pytest.warns(RuntimeWarning, match=os.strerror(code)):
        cache.put(other, b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(other) == b"code"
        cache.put(entry_key("a third"), b"more")
        assert cache.get(KEY) == b"before"
    assert files(folder) == [entry(folder).name]


def test_a_full_disk_in_earnest(tmp_path):
    """/dev/full fails on write, not on open."""
    cache = KernelCache(tmp_path / "cache")
    cache.put(KEY, b"x")
    real = os.open

    def full(path, flags, *rest, **options):
        if isinstance(path, str) and path.endswith(".new"):
            return real("/dev/full", os.O_WRONLY)
        return real(path, flags, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.warns(RuntimeWarning, match="No space left"):
            cache.put(entry_key("large"), bytes(1 << 20))
    assert cache.get(entry_key("large")) == bytes(1 << 20)


def _works_in_memory(cache: KernelCache, reason: str) -> None:
    with pytest.warns(RuntimeWarning, match=reason):
        assert cache.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        cache.put(KEY, b"code")
        assert cache.get(KEY) == b"code"
    assert cache.info().problem


def test_a_directory_that_was_removed_is_made_again(cache, folder):
    cache.put(KEY, b"code")
    entry(folder).unlink()
    folder.rmdir()
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert KernelCache(folder).get(KEY) == b"code"


def test_an_exchanged_directory_is_not_read(cache, folder, tmp_path):
    """What was checked is what is used, also when a parent lets others rename."""
    cache.put(KEY, b"mine")
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    attacker = KernelCache(folder)
    attacker.put(KEY, b"theirs")
    assert cache.get(KEY) == b"mine"


# ---- size ----
def test_the_least_recently_used_entries_go(folder):
    cache = KernelCache(folder, limit=10_000)
    keys = [entry_key(str(number)) for number in range(8)]
    for number, key in enumerate(keys):
        cache.put(key, bytes(1000))
        os.utime(entry(folder, key), (number, number))
    assert cache.get(keys[0]) is not None  # renewed by its use: the next in line is keys[1]
    for number in range(8, 12):
        cache.put(entry_key(str(number)), bytes(1000))
    kept = [key in {name.removesuffix(".kernel") for name in files(folder)} for key in keys]
    assert kept[0]
    assert not kept[1]
    assert kept[7]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000


def test_the_limit_holds_without_looking_every_time(folder, monkeypatch):
    """Small entries against a large limit are counted now and then; in the end the limit holds within its slack."""
    cache, looks = KernelCache(folder, limit=400_000), 0
    real = KernelCache.evict

    def counted(self):
        nonlocal looks
        looks += 1
        return real(self)

    monkeypatch.setattr(KernelCache, "evict", counted)
    for number in range(1000):
        cache.put(entry_key(str(number)), bytes(1000))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 400_000 * 1.3
    assert looks < 200


def test_what_killed_processes_left_is_cleaned_up(cache, folder):
    cache.put(KEY, b"code")
    (folder / f"{KEY}.999999.0.new").write_bytes(b"half")
    os.utime(folder / f"{KEY}.999999.0.new", (1, 1))
    (folder / f"{KEY}.999998.0.new").write_bytes(b"being written")
    cache.evict()
    assert files(folder) == sorted([entry(folder).name, f"{KEY}.999998.0.new"])


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("17", 17), ("2k", 2048), ("512M", 512 << 20), (" 1G ", 1 << 30)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "1GB", "ten", "٣"])
def test_wrong_sizes(text):
    with pytest.raises(ValueError, match="BRINGUP_CACHE_SIZE"):
        parse_size(text)


# ---- many at once ----
def test_many_processes_write_and_read_the_same_entries(folder):
    program = f"""
import sys, random
from bringup.compile.kernel_cache import KernelCache, entry_key
from pathlib import Path
cache = KernelCache(Path({str(folder)!r}), limit=200_000)
order = random.Random(int(sys.argv[1]))
for _ in range(300):
    number = order.randrange(40)
    key, data = entry_key(str(number)), bytes([number]) * (1000 + 300 * number)
    found = cache.get(key)
    assert found in (None, data), number
    if found is None:
        cache.put(key, data)
    if order.random() < 0.02:
        cache.evict()
cache.save_counts()
"""
    command = [sys.executable, "-W", "error", "-c", program]
    started = [subprocess.Popen([*command, str(n)], cwd=ROOT, stderr=subprocess.PIPE) for n in range(4)]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    info = KernelCache(folder, limit=200_000).info()
    assert info.hits + info.misses == 4 * 300
    assert info.entries > 0
    assert not [name for name in files(folder) if name.endswith(".new")]


class Compiler(Driver):
    """Counts what it compiles."""

    name = "compiler"

    def __init__(self, target: str = "c; vector=16", identity: str = "cc 1.0") -> None:
        self.compiled: list[str] = []
        self._target, self._identity = target, identity

    def target(self) -> str:
        return self._target

    def compiler_identity(self) -> str:
        return self._identity

    def compile(self, source: str) -> bytes:
        if source == "bad":
            raise RuntimeError("does not compile")
        self.compiled.append(source)
        time.sleep(0.01)
        return f"binary of {source}".encode()


def test_compiled_asks_the_compiler_once_per_machine(process_cache):
    first, second = Compiler(), Compiler()
    for driver in (first, second, first):
        assert compiled(driver, "text") == b"binary of text"
    assert (first.compiled, second.compiled) == (["text"], [])


def test_everything_that_decides_the_binary_is_in_the_key(process_cache, monkeypatch):
    drivers = [Compiler(), Compiler(target="c; vector=32"), Compiler(identity="cc 2.0")]
    for driver in drivers:
        compiled(driver, "text")
        compiled(driver, "another text")
    assert [driver.compiled for driver in drivers] == [["text", "another text"]] * 3
    monkeypatch.setattr(kernel_cache, "GENERATOR_VERSION", 999)
    compiled(drivers[0], "text")
    assert drivers[0].compiled == ["text", "another text", "text"]


def test_threads_that_want_one_kernel_compile_it_once(process_cache):
    driver, start = Compiler(), threading.Barrier(8)

    def work(_: int) -> bytes:
        start.wait()
        return compiled(driver, "text")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(8))) == {b"binary of text"}
    assert driver.compiled == ["text"]


def test_a_thread_that_looked_before_another_began_does_not_compile_again(process_cache, monkeypatch):
    driver, cache = Compiler(), kernel_cache.default_cache()
    looked, made = threading.Event(), threading.Event()
    get = cache.get

    def slow_get(key: str) -> bytes | None:
        data = get(key)
        if threading.current_thread().name == "late" and not looked.is_set():
            looked.set()
            assert made.wait(30)
        return data

    monkeypatch.setattr(cache, "get", slow_get)
    late = threading.Thread(target=compiled, args=(driver, "text"), name="late")
    late.start()
    assert looked.wait(30)
    compiled(driver, "text")
    made.set()
    late.join()
    assert driver.compiled == ["text"]


def test_a_failed_compilation_is_not_remembered(process_cache):
    driver = Compiler()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not compile"):
            compiled(driver, "bad")
    assert compiled(driver, "good") == b"binary of good"
    assert not kernel_cache._compiling


def test_a_forked_child_counts_for_itself(process_cache):
    driver = Compiler()
    for _ in range(3):
        compiled(driver, "text")
    child = os.fork()
    if child == 0:
        cache = kernel_cache.default_cache()
        os._exit(0 if (cache.hits, cache.misses) == (0, 0) and compiled(driver, "text") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kernel_cache.default_cache().hits == 2


# ---- where ----
def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    for variables, expected in [
        ({"BRINGUP_CACHE": str(tmp_path / "x")}, tmp_path / "x"),
        ({"BRINGUP_CACHE": "off"}, None),
        ({"BRINGUP_CACHE": "~/kernels"}, tmp_path / "kernels"),
        ({"XDG_CACHE_HOME": str(tmp_path / "xdg")}, tmp_path / "xdg" / "bringup"),
        ({"XDG_CACHE_HOME": "relative"}, tmp_path / ".cache" / "bringup"),
        ({}, tmp_path / ".cache" / "bringup"),
    ]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("BRINGUP_CACHE", "XDG_CACHE_HOME"):
                patch.delenv(name, raising=False)
            patch.setenv("HOME", str(tmp_path))
            for name, value in variables.items():
                patch.setenv(name, value)
            assert cache_directory.cache_directory() == expected


def test_a_wrong_size_limit_is_a_warning(process_cache, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE_SIZE", "huge")
    with pytest.warns(RuntimeWarning, match="BRINGUP_CACHE_SIZE=huge"):
        assert kernel_cache.default_cache().limit == 1 << 30


def test_off_keeps_kernels_in_memory_and_warns_of_nothing(monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", "off")
    monkeypatch.setattr(kernel_cache, "_default", None)
    driver = Compiler()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(driver, "text") == compiled(driver, "text")
    assert driver.compiled == ["text"]


# ---- the command ----
def test_the_command_shows_and_clears(process_cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    driver = Compiler()
    for source in ("one", "two", "one"):
        compiled(driver, source)
    shown = CliRunner().invoke(cli.app(), ["cache"])
    assert shown.exit_code == 0, shown.output
    for words in (str(process_cache), "2", "1 of 3 (33 %)", "1.0 GiB"):
        assert words in shown.output
    cleared = CliRunner().invoke(cli.app(), ["cache", "clear"])
    assert cleared.exit_code == 0
    assert "removed 2 of 2 entries" in cleared.output
    assert files(process_cache) == []


def test_the_command_says_what_is_wrong(process_cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    process_cache.mkdir()
    process_cache.chmod(0o777)
    shown = CliRunner().invoke(cli.app(), ["cache"])
    assert "can be written by other users" in shown.output
