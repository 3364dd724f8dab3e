"""A shared library becomes a driver with Python methods; a broken one becomes an error that says what is wrong."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from ctypes import byref, c_uint64
from pathlib import Path

import pytest

from bringup.driver import CopyKind, DeviceLost, DeviceSpec, DriverAbsent, Launch, Placement, PlacementKind
from bringup.driver import c_struct as abi
from bringup.driver.abi import CDriver, DriverError, DriverStruct, struct_of
from tests.c_compiler import ROOT, compile_c

GOOD = """
#include <bringup/driver.h>
#include <stdlib.h>
#include <string.h>
static int32_t count(void *s) { return 3; }
static int32_t open_(void *s, int32_t d, bringup_device_spec *p) {
  strcpy(p->name, "C chip"); p->memory_bytes = 1 << 20; p->dtypes = 1u << BRINGUP_FLOAT32; return 0;
}
static int32_t alloc(void *s, int32_t d, uint64_t n, uint64_t *a) {
  if (n > 99) return (int32_t)(n - 100);
  *a = (uint64_t)malloc(n); return 0;
}
static int32_t free_(void *s, int32_t d, uint64_t a) { free((void *)a); return 0; }
static int32_t copy(void *s, int32_t d, uint64_t t, uint64_t f, uint64_t n, int32_t k, uint64_t q,
                    const bringup_placement *p) {
  if (p) return p->kind == BRINGUP_SHARD && p->block == 64 ? BRINGUP_OK : BRINGUP_INVALID;
  memcpy((void *)t, (void *)f, n); return 0;
}
static int32_t compile(void *s, const char *t, void **b, uint64_t *n, void (**f)(void *)) {
  *b = strdup(t); *n = strlen(t); *f = free; return 0;
}
static int32_t target(void *s, char *t, uint64_t n) { strcpy(t, "c"); return 0; }
static int32_t launch(void *s, int32_t d, uint64_t k, const bringup_launch *l) {
  return l->arg_count == 2 && l->args[1] == 6 && l->placements[1].block == 8 ? 0 : BRINGUP_INVALID;
}
static int32_t host(void *s, int32_t d, uint64_t q, void (*f)(void *), void *a) { f(a); return 0; }
static void last(void *s, char *m, uint64_t n) { strcpy(m, s); }
static int32_t clock_(void *s, int32_t d, uint64_t *n) { *n = 5; return 0; }
int32_t bringup_driver_create(uint32_t v, const char *options, bringup_driver *d, char *e, uint64_t n) {
  static char reason[64] = "the C text";
  if (!strcmp(options, "absent")) { strcpy(e, "no chip in slot 3"); return BRINGUP_ABSENT; }
  d->abi_version = BRINGUP_ABI_VERSION; d->struct_size = sizeof *d; d->self = reason;
  d->device_count = count; d->open = open_; d->alloc = alloc; d->free = free_; d->copy = copy;
  d->compile = compile; d->target = target; d->launch = launch; d->host_function = host; d->clock = clock_;
  d->last_error = last;
  EXTRA
  return BRINGUP_OK;
}
"""


def reason(struct: DriverStruct) -> str:
    text = ctypes.create_string_buffer(1024)
    struct.last_error(struct.self, ctypes.addressof(text), 1024)
    return text.value.decode()


def c_driver(folder: Path, source: str = GOOD, extra: str = "", options: str = "") -> CDriver:
    path = compile_c(folder, source.replace("EXTRA", extra), "-shared", "-fPIC", name="chip")

    class Chip(CDriver):
        name = "chip"
        library = path

        def options(self) -> str:
            return options

    return Chip()


def test_a_library_becomes_a_driver(tmp_path: Path) -> None:
    driver = c_driver(tmp_path)
    assert driver.device_count() == 3
    assert driver.open(0) == DeviceSpec("C chip", 1 << 20, dtypes=("float32",))
    data, back = ctypes.create_string_buffer(b"hello"), ctypes.create_string_buffer(6)
    address = driver.alloc(0, 6)
    driver.copy(0, address, ctypes.addressof(data), 6, CopyKind.HOST_TO_DEVICE, 0)
    driver.copy(0, ctypes.addressof(back), address, 6, CopyKind.DEVICE_TO_HOST, 0)
    driver.copy(0, 0, 0, 0, CopyKind.DEVICE_TO_HOST, 0, Placement(PlacementKind.SHARD, 64))
    driver.free(0, address)
    assert back.value == b"hello"
    assert driver.target() == "c"
    assert driver.compile("int x;") == b"int x;"
    where = (Placement(), Placement(PlacementKind.SHARD, 8))
    driver.launch(0, 1, Launch((5, 6), 1, 0, placements=where))
    seen: list[str] = []
    driver.host_function(0, 0, lambda: seen.append("ran"))
    assert seen == ["ran"]
    assert driver.offers("alloc")
    assert driver.offers("compile")
    assert not driver.offers("event_record")
    with pytest.raises(NotImplementedError, match=r"'chip'.*does not offer event_record"):
        driver.event_record(0, 0)
    assert DriverStruct.from_address(driver.struct_address).device_count(None) == 3
    assert struct_of(driver)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (1, RuntimeError),
        (2, MemoryError),
        (3, ValueError),
        (4, NotImplementedError),
        (5, DriverAbsent),
        (7, DeviceLost),
        (77, RuntimeError),
    ],
)
def test_a_c_status_becomes_an_exception(tmp_path: Path, status: int, kind: type[Exception]) -> None:
    driver = c_driver(tmp_path)
    with pytest.raises(kind, match=r"chip\.alloc: the C text"):
        driver.alloc(0, 100 + status)


def test_python_methods_replace_those_of_the_library(tmp_path: Path) -> None:
    base = type(c_driver(tmp_path))

    class Mixed(base):  # type: ignore[misc, valid-type]
        def clock(self, device: int) -> int:
            if device:
                raise ValueError("only device 0")
            return 10 + super().clock(device)

        def charge(self, device: int, stream: int, dtype: int, flops: float, bytes: float) -> None: ...

    driver = Mixed()
    struct = DriverStruct.from_address(driver.struct_address)
    u64 = c_uint64()
    assert struct.clock(struct.self, 0, byref(u64)) == abi.OK
    assert u64.value == 15
    assert driver.offers("charge")
    assert struct.charge
    assert not struct.event_record
    assert struct.device_count(struct.self) == 3
    assert struct.clock(struct.self, 1, byref(u64)) == abi.INVALID
    assert reason(struct) == "chip.clock: ValueError: only device 0"
    assert struct.alloc(struct.self, 0, 101, byref(u64)) == abi.ERROR
    assert reason(struct) == "the C text"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("d->abi_version = 99;", "built for ABI version 99, bringup has 2"),
        ("d->struct_size = 40;", "struct_size 40 is too small"),
        ("d->alloc = 0; d->copy = 0;", "required functions are NULL: alloc, copy"),
        ('strcpy(e, "bad firmware"); return BRINGUP_ERROR;', "bad firmware"),
        ("return BRINGUP_ERROR;", "bringup_driver_create returned 1"),
    ],
)
def test_a_library_that_breaks_the_contract(tmp_path: Path, extra: str, message: str) -> None:
    driver = c_driver(tmp_path, extra=extra)
    for attempt in (lambda: driver.device_count(), lambda: driver.struct_address, lambda: driver.offers("clock")):
        with pytest.raises(DriverError, match=rf"'chip'.*libchip\.so.*{message}"):
            attempt()


def test_an_absent_chip(tmp_path: Path) -> None:
    with pytest.raises(DriverAbsent, match="no chip in slot 3"):
        c_driver(tmp_path, options="absent").device_count()


def test_functions_beyond_struct_size_count_as_null(tmp_path: Path) -> None:
    driver = c_driver(
        tmp_path, extra="d->struct_size = offsetof(bringup_driver, clock);", source="#include <stddef.h>\n" + GOOD
    )
    assert driver.offers("compile")
    assert not driver.offers("clock")
    with pytest.raises(MemoryError, match="status 2 without a reason"):
        driver.alloc(0, 102)


def test_a_newer_library_may_write_a_longer_struct(tmp_path: Path) -> None:
    longer = "d->struct_size = sizeof *d + 512; memset(d + 1, 0x55, 512);"
    assert c_driver(tmp_path, extra=longer).device_count() == 3


def test_files_that_are_no_driver(tmp_path: Path) -> None:
    class Missing(CDriver):
        name = "missing"
        library = tmp_path / "libnothing.so"

    with pytest.raises(DriverError, match=r"'missing': no library file .*libnothing\.so"):
        Missing().device_count()
    from bringup.drivers.sim import Driver as Sim

    sim = type("Sim", (Sim,), {"library": tmp_path / "_sim.so"})
    with pytest.raises(DriverError, match=r"'sim': no library file .*_sim\.so: it is not built; run make build"):
        sim().device_count()
    (tmp_path / "libtext.so").write_text("not ELF")

    class Text(CDriver):
        name = "text"
        library = tmp_path / "libtext.so"

    with pytest.raises(DriverError, match=r"'text'.*libtext\.so: cannot be loaded"):
        Text().device_count()
    with pytest.raises(DriverError, match="does not export bringup_driver_create"):
        c_driver(tmp_path, source="int nothing;").device_count()
    with pytest.raises(DriverError, match="no `library` is set"):
        CDriver().device_count()


def test_the_modules_import_neither_torch_nor_numpy() -> None:
    code = "import sys, bringup.driver.abi, bringup.driver.lookup; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
