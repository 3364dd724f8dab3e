"""What a compiler target can do: the language, the width of its vectors, and the hardware features that change code."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

#: What kernels can be written in.
LANGUAGES = ("c",)
#: The keys of a description, and how each is written.
KEYS = {"vector": "vector=BYTES", "fma": "fma=0|1", "isa": "isa=NAME"}
#: Lengths of vectors that the C target writes code for.
VECTOR_BYTES = (0, 16, 32, 64)


@dataclass(frozen=True)
class Target:
    """A target as drivers describe it in one line of text.

    >>> Target(vector_bytes=64, isa="x86-64-v4").describe()
    'c; vector=64 fma=1 isa=x86-64-v4'
    """

    language: str = "c"
    vector_bytes: int = 16
    """64 for AVX-512, 32 for AVX2, 16 for SSE and NEON, 0 for scalar code only."""
    fma: bool = True
    """A hardware fused multiply-add exists."""
    isa: str = ""
    """Part of cache keys and of the compiler's flags, such as x86-64-v4 or rv64gc."""

    def describe(self) -> str:
        """The text that ``Driver.target()`` returns."""
        words = [f"vector={self.vector_bytes}", f"fma={int(self.fma)}"]
        if self.isa:
            words.append(f"isa={self.isa}")
        return f"{self.language}; {' '.join(words)}"

    @staticmethod
    def parse(text: str) -> Target:
        """The target of a description; an unknown word is refused.

        >>> Target.parse("c; vector=32 fma=0 isa=x86-64-v3").vector_bytes
        32
        """
        if not isinstance(text, str):
            raise ValueError(f"target() must return a text such as 'c; vector=0', not {text!r}")
        language, _, rest = text.partition(";")
        language = language.strip()
        if language not in LANGUAGES:
            known = ", ".join(LANGUAGES)
            raise ValueError(f"target {text!r}: no kernels can be written in {language!r}; known: {known}")
        fields: dict[str, str] = {}
        for word in rest.split():
            key, equals, value = word.partition("=")
            if not equals or key not in KEYS:
                close = get_close_matches(key, KEYS, n=1)
                hint = f": did you mean {close[0]}=…?" if close else ""
                raise ValueError(f"target {text!r}: {word!r} is none of {' '.join(KEYS.values())}{hint}")
            fields[key] = value
        vector, fma = fields.get("vector", "16"), fields.get("fma", "1")
        if vector not in map(str, VECTOR_BYTES):
            choices = ", ".join(map(str, VECTOR_BYTES))
            raise ValueError(f"target {text!r}: vector={vector} is none of {choices} (bytes; 0 for scalar code)")
        if fma not in ("0", "1"):
            raise ValueError(f"target {text!r}: fma={fma} is neither 0 nor 1")
        return Target(language, int(vector), fma == "1", fields.get("isa", ""))
