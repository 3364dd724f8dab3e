"""The languages that kernels can be written in, by name: built in, registered, or installed.

A package offers one by an entry point in the group ``bringup.targets``: its name is the language, its value a
``Target`` class.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract
from typing import Any

from bringup.targets.target import Target

_GROUP = "bringup.targets"
_BUILT_IN = {
    "c": "bringup.targets.c.target:CTarget",
    "dpu": "bringup.targets.dpu.target:DpuTarget",
    "riscv": "bringup.targets.riscv.target:RiscvTarget",
}
_registered: dict[str, type[Target]] = {}


def register_target(target: type[Target]) -> type[Target]:
    """Makes a language known to this process; usable as a decorator. The same class again is fine, another is not."""
    language = _checked(target, None, "register_target")
    if language in _BUILT_IN or _registered.setdefault(language, target) is not target:
        raise ValueError(f"the target language {language!r} is taken by {_taken_by(language)}")
    return target


def languages() -> list[str]:
    """Returns the names of all languages.

    >>> "c" in languages()
    True
    """
    return sorted({*_BUILT_IN, *_registered, *(entry.name for entry in entry_points(group=_GROUP))})


def target_class(language: str) -> type[Target]:
    """Returns the class of a language; raises ValueError for an unknown one, or one whose package fails."""
    if language in _BUILT_IN:
        module, _, name = _BUILT_IN[language].partition(":")
        found: type[Target] = getattr(import_module(module), name)
        return found
    if language in _registered:
        return _registered[language]
    for entry in entry_points(group=_GROUP):
        if entry.name == language:
            try:
                loaded = entry.load()
            except Exception as error:
                raise ValueError(
                    f"the target language {language!r} ({entry.value}) cannot be loaded: {error}"
                ) from error
            _checked(loaded, language, f"the entry point {entry.value}")
            _registered[language] = loaded
            return _registered[language]
    known = languages()
    close = get_close_matches(language, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "; register_target adds one (docs/targets.md)"
    raise ValueError(f"no kernels can be written in {language!r}; known: {', '.join(known)}{hint}")


def parse_target(text: str) -> Target:
    """Returns the target of a description such as ``c; vector=32``; unknown languages and words are refused.

    >>> parse_target("c; vector=32 fma=0 isa=x86-64-v3").describe()
    'c; vector=32 fma=0 isa=x86-64-v3'
    """
    if not isinstance(text, str):
        raise ValueError(f"target() must return a text such as 'c; vector=0', not {text!r}")
    language, _, rest = text.partition(";")
    try:
        target = target_class(language.strip())
        words: dict[str, str] = {}
        for word in rest.split():
            key, equals, value = word.partition("=")
            if not equals or key not in target.words:
                close = get_close_matches(key, target.words, n=1)
                hint = f": did you mean {close[0]}=…?" if close else ""
                raise ValueError(
                    f"{word!r} is none of {' '.join(target.words.values()) or 'its words: it has none'}{hint}"
                )
            words[key] = value
        return target.from_words(words)
    except ValueError as error:
        raise ValueError(f"target {text!r}: {error}") from error


def _checked(target: Any, language: str | None, origin: str) -> str:
    """Returns the language of a class that can be a target; ``language`` is the one it has to be, None for any."""
    if not (isinstance(target, type) and issubclass(target, Target)):
        raise ValueError(f"{origin}: a target is a class derived from bringup.targets.target.Target, not {target!r}")
    own = getattr(target, "language", None)
    if not isinstance(own, str) or not re.fullmatch(r"[\w.+-]+", own) or language not in (None, own):
        wanted = "a word" if language is None else repr(language)
        raise ValueError(f"{origin}: {target.__name__}.language is {own!r}, not {wanted}")
    if isabstract(target):
        raise ValueError(f"{origin}: {target.__name__} lacks {', '.join(sorted(target.__abstractmethods__))}")
    return own


def _taken_by(language: str) -> str:
    return _BUILT_IN.get(language) or _registered[language].__qualname__
