"""RISC-V as a target: C for what a driver launches, and the functions of bare-metal programs, whose sizes are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bringup.targets.c.target import CTarget

if TYPE_CHECKING:
    from bringup.ir.kernel import Kernel
    from bringup.targets.riscv.rendered import Rendered


@dataclass(frozen=True)
class RiscvTarget(CTarget):
    """C for a RISC-V core, with vector assembly and a matrix engine where a program's functions can use them.

    >>> RiscvTarget(0, isa="rv64gcv", assembly=True).describe()
    'riscv; vector=0 fma=1 isa=rv64gcv assembly=1'
    """

    language: ClassVar[str] = "riscv"
    words: ClassVar[Mapping[str, str]] = {**CTarget.words, "assembly": "assembly=0|1", "engine": "engine=ADDRESS"}

    assembly: bool = False
    """Programs may hold vector instructions, which run on every length of vectors."""
    engine: int = 0
    """Where a matrix engine is; 0: there is none."""

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> RiscvTarget:
        """Returns the target; its words are those of C, ``assembly`` and ``engine``."""
        c = CTarget.from_words(words)
        assembly, engine = words.get("assembly", "0"), words.get("engine", "0")
        if assembly not in ("0", "1"):
            raise ValueError(f"assembly={assembly} is neither 0 nor 1")
        return cls(c.vector_bytes, c.fma, c.isa, assembly == "1", int(engine, 0))

    def describe(self) -> str:
        """Returns the text for ``Driver.target()``."""
        engine = f" engine={self.engine:#x}" if self.engine else ""
        return f"{super().describe()} assembly={int(self.assembly)}{engine}"

    def function(self, kernel: Kernel, name: str, constants: frozenset[str], prefix: str) -> Rendered:
        """Returns a kernel of known sizes as a function of a program, by the emitter that suits it.

        ``constants`` names the buffers that it may want packed; ``prefix``: how names begin that the linker sees.
        """
        from bringup.targets.riscv import engine, scalar_contract, vector_contract, vector_strip

        found = engine.engine_call(kernel, name, self.engine) if self.engine else None
        if found is None and self.assembly:
            found = vector_contract.vector_contract(kernel, name, constants, prefix)
            found = found or vector_strip.vector_strip(kernel, name, prefix)
        found = found or scalar_contract.scalar_contract(kernel, name, self, constants)
        return found or self.loops(kernel, name, constants, prefix)

    def loops(self, kernel: Kernel, name: str, constants: frozenset[str], prefix: str) -> Rendered:
        """Returns the function as loops in C, whatever the kernel's shape; takes what ``function`` takes."""
        from bringup.targets.riscv.rendered import Rendered
        from bringup.targets.riscv.static_function import static_function

        how = "loops in vectors" if self.vector_bytes else "loops"
        return Rendered(static_function(kernel, name, self), how=how)
