"""What an error of the core becomes in Python: with the exception of a Python driver as its cause, or a longer text."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Of bringup_status in driver.h.
OUT_OF_MEMORY, ABSENT, DEVICE_LOST = 2, 5, 7


def told(status: int, text: str, plain: Callable[[], BaseException]) -> BaseException | str:
    """Returns the exception to raise, or the text of the one that the core raises by itself.

    ``plain`` makes the exception of PyTorch's class, without a cause. Exceptions of drivers that end a program
    (KeyboardInterrupt, SystemExit) stay what they are. Where there is no device at all, the cause is what went wrong at
    activation.
    """
    from bringup import _C
    from bringup.driver.adapter import take_exception
    from bringup.driver.in_use import absent_error
    from bringup.torch_device.memory import out_of_memory_message

    if status == ABSENT and _C.device_count() == 0:
        return absent_error()
    cause = take_exception(text)
    if cause is None:
        return out_of_memory_message(text) if status == OUT_OF_MEMORY else text
    if not isinstance(cause, Exception):
        return cause
    # PyTorch's own translation of a lost device crashed.
    raised = torch.AcceleratorError(text) if status == DEVICE_LOST else plain()
    raised.__cause__ = cause
    return raised
