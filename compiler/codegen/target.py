"""Interface of a code generation target: a package of codegen/ that turns a schedule into source text.

A target spells scalars and index expressions (`scalar.Scalars`), writes loop nests and those with a product or another
anchor as functions or kernels, and names them with what they are launched with (`GeneratedCode`). An engine builds and
launches the text. `targets.TARGETS` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kernels_hub.compiler.codegen.scalar import Scalars
from kernels_hub.compiler.ir.op import Op, Spelling, of_kind
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import Buffer, Schedule


@dataclass(frozen=True, eq=False)
class Spellings:
    """How a target spells pointwise ops: by its own table, else by the op's row, else as what it is a dialect of.

    own: by name of the op; what is not the same for all kinds of dtypes, by kind. dialect_of: another target, of whose
    spellings those are taken that name nothing of its library (`library` is a part of such names; "": all are taken).
    """

    target: str
    own: dict[str, Spelling] = field(default_factory=dict)
    dialect_of: str = ""
    library: str = ""

    def of(self, op: Op, kind: str) -> str | None:
        """The template of an op for a kind of dtype, None where it has no spelling."""
        found = of_kind(self.own.get(op.name), kind) or op.spell(self.target, kind)
        if found is not None or not self.dialect_of:
            return found
        found = op.spell(self.dialect_of, kind)
        return None if found is None or (self.library and self.library in found) else found


class GeneratedCode(Protocol):
    """Source text, and what its functions are called with: memory of `buffers`, the numbers `sizes`.

    messages: what a call fails with, by the code that it reports (1 is the first). steps: the kernels' names in order.
    """

    @property
    def source(self) -> str:
        """All of it."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """See the class."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """See the class."""

    @property
    def messages(self) -> tuple[str, ...]:
        """See the class."""

    @property
    def steps(self) -> tuple[str, ...]:
        """See the class."""


@dataclass(frozen=True, eq=False)
class Target:
    """See the module.

    name: of its package, and the key of its spellings in rows of the op table. scalars: its dialect of expressions, for
    loop variables of known ranges. generate: the text of a schedule; raises EngineError for what it cannot express.
    """

    name: str
    spellings: Spellings
    scalars: Callable[[Ranges], Scalars]
    generate: Callable[[Schedule], GeneratedCode]
