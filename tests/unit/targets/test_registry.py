"""Languages of kernels as plug-ins: how a target is registered, installed and named, and what it may do wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from bringup.compile.failure import NoKernel
from bringup.compile.rendering import rendered
from bringup.ir.index import Int, Size
from bringup.ir.kernel import Kernel
from bringup.targets import registry
from bringup.targets.registry import languages, parse_target, register_target, target_class
from bringup.targets.source import Source
from bringup.targets.target import CannotRender, Target


@dataclass(frozen=True)
class Toy(Target):
    language: ClassVar[str] = "toy"
    words: ClassVar[Mapping[str, str]] = {"width": "width=N"}
    width: int = 1

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> Toy:
        return cls(int(words.get("width", "1")))

    def render(self, kernel: Kernel) -> Source:
        return Source(f"begin {kernel.name} end", kernel.name, Int(1))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def installed(monkeypatch, name: str, value: str) -> None:
    entry = EntryPoint(name, value, "bringup.targets")
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == entry.group else [])


def test_a_registered_language_is_found_by_a_description() -> None:
    assert register_target(Toy) is Toy is register_target(Toy)
    assert languages() == ["c", "dpu", "riscv", "toy"]
    assert parse_target("toy; width=4") == Toy(4)
    assert rendered(Kernel("k"), parse_target("toy")).source.text == "begin k end"


def test_an_installed_language_is_imported_when_it_is_named(monkeypatch) -> None:
    installed(monkeypatch, "toy", f"{__name__}:Toy")
    assert languages() == ["c", "dpu", "riscv", "toy"]
    assert not registry._registered
    assert target_class("toy") is Toy


def test_a_name_is_taken_once() -> None:
    register_target(Toy)
    for name in ("toy", "c"):
        other = type("Other", (Toy,), {"language": name})
        with pytest.raises(ValueError, match=f"'{name}' is taken by .*{'Toy' if name == 'toy' else 'CTarget'}"):
            register_target(other)
    assert target_class("toy") is Toy


def test_a_program_for_a_core_names_it() -> None:
    text = "riscv; vector=64 fma=1 isa=rv64gcv assembly=1 engine=0x10320000"
    target = parse_target(text)
    assert target.describe() == text
    assert rendered(Kernel("k"), target).source == rendered(Kernel("k"), parse_target("c; isa=rv64gcv")).source
    with pytest.raises(ValueError, match="assembly=2 is neither 0 nor 1"):
        parse_target("riscv; assembly=2")


class NoRender(Target):
    language: ClassVar[str] = "half"

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> NoRender:
        return cls()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Toy(), "a target is a class derived from .*Target, not Toy"),
        (int, "a target is a class derived from .*Target, not <class 'int'>"),
        (NoRender, "NoRender lacks render"),
        (type("Nameless", (NoRender,), {"language": ""}), "Nameless.language is '', not a word"),
        (type("Spaced", (Toy,), {"language": "a b"}), "Spaced.language is 'a b', not a word"),
        (type("Number", (Toy,), {"language": 3}), "Number.language is 3, not a word"),
        (type("Forgot", (Target,), {}), "Forgot.language is None, not a word"),
    ],
)
def test_what_is_no_target_is_refused(wrong: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        register_target(wrong)
    assert languages() == ["c", "dpu", "riscv"]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("bringup_no_such_module:Toy", r"'toy' \(bringup_no_such_module:Toy\) cannot be loaded: No module named"),
        (f"{__name__}:Missing", "cannot be loaded: .*Missing"),
        (f"{__name__}:NoRender", "NoRender.language is 'half', not 'toy'"),
        (f"{__name__}:installed", "a target is a class derived from"),
    ],
)
def test_a_package_that_fails_is_named(monkeypatch, value: str, error: str) -> None:
    installed(monkeypatch, "toy", value)
    with pytest.raises(ValueError, match=error):
        parse_target("toy")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("toi", "no kernels can be written in 'toi'; known: c, dpu, riscv, toy; did you mean 'toy'?"),
        ("", "no kernels can be written in ''; known: c, dpu, riscv, toy"),
        ("toy; widht=3", "'widht=3' is none of width=N: did you mean width=…?"),
        ("toy; width", "'width' is none of width=N"),
        ("toy; width=wide", "invalid literal"),
        ("c; vector=12", "vector=12 is none of 0, 16, 32, 64"),
        (None, "must return a text such as 'c; vector=0', not None"),
    ],
)
def test_a_wrong_description_says_what_is_wrong(text: Any, error: str) -> None:
    register_target(Toy)
    with pytest.raises(ValueError) as raised:
        parse_target(text)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("source", "kind", "error"),
    [
        (CannotRender("no division"), NoKernel, "toy: no code for k: no division"),
        (
            KeyError("add"),
            RuntimeError,
            "the target 'toy' failed to render k: KeyError: 'add'; what its language lacks",
        ),
        (
            None,
            RuntimeError,
            "the target 'toy' rendered k to no Source but NoneType: return Source(text, entry, units)",
        ),
        ("text", RuntimeError, "the target 'toy' rendered k to no Source but str"),
        (Source(b"k", "k", Int(1)), RuntimeError, "a source whose text is bytes: it must be str"),  # type: ignore[arg-type]
        (Source("k", None, Int(1)), RuntimeError, "a source without its entry None"),  # type: ignore[arg-type]
        (Source("k", "k", 4), RuntimeError, "a source whose units are 4: write a formula"),  # type: ignore[arg-type]
        (Source("k", "k", Size("n")), RuntimeError, "a source whose units need 'n', which is not a size of the kernel"),
        (Source("begin end", "k", Int(1)), RuntimeError, "a source without its entry 'k'"),
        (Source("begin end", "", Int(1)), RuntimeError, "a source without its entry ''"),
    ],
)
def test_a_target_that_fails_to_render_is_named(monkeypatch, source: Any, kind: type, error: str) -> None:
    def render(self: Toy, kernel: Kernel) -> Any:
        if isinstance(source, Exception):
            raise source
        return source

    monkeypatch.setattr(Toy, "render", render)
    with pytest.raises(kind) as raised:
        rendered(Kernel("k"), Toy())
    assert error in str(raised.value)
