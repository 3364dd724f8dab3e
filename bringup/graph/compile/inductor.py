"""What PyTorch's inductor finds when it looks for our device's code generator: an error that says what to use.

Inductor generates C++ or Triton for devices it knows; our graphs have a pipeline of their own. It comes here by name
(``backend="inductor"``), and where bringup is not the default backend (``default_backend.py``; torch before 2.13).
"""

from __future__ import annotations

from typing import Any, NoReturn


class _Refusing(type):
    """The class of a class of which nothing can be had; whatever inductor wants of it is the error."""

    def _refuse(cls) -> NoReturn:
        import torch

        name = torch._C._get_privateuse1_backend_name()
        raise RuntimeError(
            f'inductor generates no code for {name}: compile with torch.compile(model, backend="bringup") instead'
        )

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        cls._refuse()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        cls._refuse()


class NoInductor(metaclass=_Refusing):
    """Stands for each of inductor's classes. A class itself: since torch 2.15 inductor asks for that first."""
