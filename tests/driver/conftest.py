"""Fixtures of the driver tests: the sim driver built from these sources, one per set of options."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bringup.drivers import sim
from tests.driver.through_the_contract import ROOT

SOURCES = ROOT / "bringup" / "drivers" / "sim"


@pytest.fixture(scope="session")
def sim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as these sources make it, so that a stale build cannot pass."""
    path = tmp_path_factory.mktemp("sim") / "_sim.so"
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror"]
    include = f"-I{ROOT / 'bringup' / 'include'}"
    subprocess.run(["cc", *flags, include, *map(str, sorted(SOURCES.glob("*.c"))), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def make_sim(sim_library: Path) -> Iterator[Callable[..., sim.Driver]]:
    """make_sim("devices=1") is a driver with those options and all devices open; they are closed at the end."""
    built = type("Built", (sim.Driver,), {"library": sim_library})
    drivers = []

    def one(options: str = "devices=2,memory=64M", open_devices: bool = True) -> sim.Driver:
        driver = built(options)
        count = driver.device_count()
        if open_devices:
            for device in range(count):
                driver.open(device)
            drivers.append(driver)
        return driver

    yield one
    for driver in drivers:
        for device in range(driver.device_count()):
            driver.close(device)


@pytest.fixture(scope="session")
def flat_sim(make_sim) -> sim.Driver:
    return make_sim()
