"""What a compiler target can do: the language, the width of its vectors, and the hardware features that change code."""

from __future__ import annotations

from dataclasses import dataclass


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
        language, _, rest = text.partition(";")
        fields: dict[str, str] = {}
        for word in rest.split():
            key, equals, value = word.partition("=")
            if not equals or key not in ("vector", "fma", "isa"):
                raise ValueError(f"target {text!r}: {word!r} is none of vector=BYTES fma=0|1 isa=NAME")
            fields[key] = value
        return Target(
            language=language.strip() or "c",
            vector_bytes=int(fields.get("vector", "16")),
            fma=fields.get("fma", "1") == "1",
            isa=fields.get("isa", ""),
        )
