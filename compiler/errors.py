"""Every error that the compiler raises on purpose.

    KernelsHubError
    └── CompilerError                        root of these
        ├── DimError        ValueError       a dim that cannot be: unknown symbol, broken fact, no integer
        ├── TypeRuleError   TypeError        operands or attributes that an op does not take
        │   └── ShapeError  ValueError       shapes that contradict each other, both places named
        ├── GraphError      ValueError       a value of another graph, a name that is taken, a frozen graph
        ├── VerifyError     AssertionError   an invariant of the IR is broken; names the value
        ├── ParseError      ValueError       text that is not a graph; names the line
        ├── DerivativeError ValueError       a graph without a derivative: all ops that have none, with their origins
        ├── EvaluateError   ValueError       inputs that do not fit a graph, or a value that an op refuses
        │   └── NonFiniteError ArithmeticError   the first op that made a NaN or an infinity
        ├── OriginalRaisesError              sizes that a layer may be called with, and its original does not take
        ├── ImportFailure   ImportError      a file or module that does not become a graph, all causes listed
        │   └── OnnxImportError              an ONNX model with nodes that cannot be imported: all of them
        ├── EngineError     RuntimeError     an engine that failed at what it accepted, or none that takes a graph
        │   └── BuildError                       a compiler that failed; its message shortened, the source kept
        ├── PlanError       ValueError       a plan that is damaged, or for another device, version or signature
        └── MissingDependencyError ImportError   an optional package that this needs; names the extra

Messages name the value, the op and the shapes, and say what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.shortening import shortened
from kernels_hub.errors import KernelsHubError


class CompilerError(KernelsHubError):
    """Root of every error raised by kernels_hub.compiler."""


class DimError(CompilerError, ValueError):
    """A dim, symbol or binding that contradicts what is known of it."""


class TypeRuleError(CompilerError, TypeError):
    """Operands or attributes that an op's rules refuse."""


class ShapeError(TypeRuleError, ValueError):
    """Shapes that contradict each other; the message names both places.

    unequal: two dims of which nothing says that they are equal, where that is the fault.
    """

    def __init__(self, message: str, *, unequal: tuple[object, object] | None = None) -> None:
        super().__init__(message)
        self.unequal = unequal


class GraphError(CompilerError, ValueError):
    """A graph put together wrongly: a foreign value, a name given twice, a frozen graph appended to."""


class VerifyError(CompilerError, AssertionError):
    """A broken invariant of the IR; a defect of the pass that ran last, not of its input."""


class ParseError(CompilerError, ValueError):
    """Text that is not the printed form of a graph."""


class DerivativeError(CompilerError, ValueError):
    """A graph that cannot be differentiated; the message lists every op that is in the way and where it comes from."""


class EvaluateError(CompilerError, ValueError):
    """Inputs that do not fit a graph's signature, or data that an op cannot take (an index out of range)."""


class NonFiniteError(EvaluateError, ArithmeticError):
    """An op whose operands were finite and whose result is not."""


class OriginalRaisesError(CompilerError):
    """A layer whose original raises for sizes that calls may have.

    of_sizes: whether they may have them because nobody said which sizes there are.
    """

    def __init__(self, message: str, *, of_sizes: bool) -> None:
        super().__init__(message)
        self.of_sizes = of_sizes


class ImportFailure(CompilerError, ImportError):
    """A model that cannot be brought into the IR; the message lists every cause at once.

    of_sizes: whether a cause is that sizes of the example are free to change. unequal: pairs of dims of which nothing
    says that they are equal, and that have to be.
    """

    def __init__(
        self, message: str, *, of_sizes: bool = False, unequal: Sequence[tuple[object, object]] = ()
    ) -> None:
        super().__init__(message)
        self.of_sizes, self.unequal = of_sizes, tuple(unequal)


@dataclass(frozen=True)
class Unsupported:
    """A node that could not be imported, and why. `inputs` are types, "?" where they are not known."""

    node: str
    op: str
    domain: str
    opset: int | None
    inputs: tuple[str, ...]
    reason: str
    path: tuple[str, ...] = ()
    """The functions and subgraphs that it is in, outermost first."""
    waits: bool = False
    """Whether it could be, were values of inputs known."""

    def __str__(self) -> str:
        op = f"{self.domain}::{self.op}" if self.domain else self.op
        where = " > ".join((*self.path, self.node))
        version = "" if self.opset is None else f", opset {self.opset}"
        return f"{where}: {op}({', '.join(self.inputs)}){version}: {self.reason}"


class OnnxImportError(ImportFailure):
    """A model with nodes that cannot be imported: `unsupported` lists them all."""

    def __init__(
        self, name: str, unsupported: Sequence[Unsupported], wanted: Sequence[str], remedy: str = ""
    ) -> None:
        count = f"{len(unsupported)} node{'s' if len(unsupported) != 1 else ''}"
        lines = "\n".join(f"  {shortened(str(one))}" for one in unsupported)
        super().__init__(f"{name}: {count} cannot be imported:\n{lines}" + (f"\n{remedy}" if remedy else ""))
        self.model, self.remedy = name, remedy
        """remedy: what to bind so that it can be imported, as options to copy; "" where that is not known."""
        self.unsupported = tuple(unsupported)
        self.wanted = tuple(wanted)
        """Inputs whose values would have to be fixed."""
        self.partial: object = None
        """The Graph as far as the import got, where that raised it; None otherwise."""


class EngineError(CompilerError, RuntimeError):
    """No engine takes a graph (every engine's reason is in the message), or one broke its word; names it.

    of_sizes: whether one might if sizes were numbers.
    """

    of_sizes: bool = False


class BuildError(EngineError):
    """A compiler that failed on generated source; says where the source was kept."""


class PlanError(CompilerError, ValueError):
    """A plan file that is damaged or of another version, or inputs that a plan was not made for."""


class MissingDependencyError(CompilerError, ImportError):
    """An optional package that is not installed."""
