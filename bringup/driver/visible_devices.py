"""``SIM_VISIBLE_DEVICES=1,0``: which devices of a driver a process uses, in which order; after CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os


def variable_of(driver: str) -> str:
    """The variable of a driver.

    >>> variable_of("sim")
    'SIM_VISIBLE_DEVICES'
    """
    return f"{driver.upper()}_VISIBLE_DEVICES"


def visible_devices(driver: str, text: str | None = None) -> list[int] | None:
    """The numbers that the driver's variable lists; None where it is not set, [] where it is empty.

    >>> visible_devices("sim", "2, 0"), visible_devices("sim", "")
    ([2, 0], [])

    CUDA leaves out what follows a number that it does not know. Here that is an error: a typo is not a request.
    """
    name = variable_of(driver)
    given = os.environ.get(name) if text is None else text
    if given is None:
        return None
    chosen: list[int] = []
    for part in given.split(",") if given.strip() else []:
        if not part.strip().isdecimal():
            raise ValueError(f"{name}={given}: {part.strip()!r} is not a device number; write {name}=0,2 or nothing")
        chosen.append(int(part))
    twice = {n for n in chosen if chosen.count(n) > 1}
    if twice:
        raise ValueError(f"{name}={given}: device {min(twice)} is listed twice")
    return chosen
