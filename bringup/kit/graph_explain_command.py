"""``bringup explain model.py:fn``: loads the model, compiles and runs it, and prints its graphs or writes the page."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from bringup.driver.in_use import device_type, driver_of
from bringup.kit.graph_explain_model import NoModel, error_line, load_model
from bringup.kit.graph_explain_watch import Say, explain_model
from bringup.lowering import install


def explain_place(
    place: str, index: int, inputs: Sequence[str], train: bool, ir: bool, source: bool, html: Path | None
) -> str:
    """Explains what is at ``model.py:fn``; returns what is wrong, in a line, or nothing."""
    if not install.active or not driver_of(index).driver.offers("launch"):
        return (
            f"{driver_of(index).name} runs no kernels here (compile, load and launch), so there are no graphs to show"
        )
    if html is not None and not html.resolve().parent.is_dir():
        return f"--html {html}: there is no folder {html.parent}"
    warnings.filterwarnings("ignore", module="torch")
    torch._logging.set_logs(all=logging.CRITICAL)  # type: ignore[attr-defined]  # errors are told below, in a line
    try:
        with _progress() as say:
            say(f"loading {place}")
            model = load_model(place, inputs, torch.device(device_type(), index), train)
            stories = explain_model(model, train, say)
    except NoModel as error:
        return str(error)
    except Exception as error:  # the user's model, and the user's mistake to see
        return f"{place} raised {error_line(error)}"
    if not stories:
        return f"{place} has no graph: no op of it reached the device"
    if html is not None:
        from bringup.kit.graph_page import page

        html.write_text(page(place, stories), encoding="utf-8")
        for story in stories:
            print(f"{story.title}: {story.summary()}")
        print(f"written: {html}")
        return ""
    from bringup.kit.graph_explain_text import console, story_parts

    terminal = console()
    for story in stories:
        for part in story_parts(story, ir, source):
            terminal.print(part)
    return ""


@contextmanager
def _progress() -> Iterator[Say]:
    """A line on standard error that says what is being done, where somebody looks."""
    from rich.console import Console

    err = Console(stderr=True, markup=False, highlight=False)
    with err.status("starting") as status:
        yield lambda text: status.update(text)
