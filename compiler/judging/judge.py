"""Judges a program: its outputs against the oracle's, element by element, on inputs made for its graph.

    judge = Judge(graph, sizes={"n": 16})
    reason = judge(plan.execute)          None, or which element of which output is wrong, on which inputs

Bounds are those of `bounds`; on ordinary inputs the error's norm is judged as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kernels_hub.compiler.errors import CompilerError, EvaluateError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.ops.control import at_most_trips
from kernels_hub.compiler.ir.ops.conversion import widened
from kernels_hub.compiler.ir.transform import without_calls
from kernels_hub.compiler.ir.types import Array, DType
from kernels_hub.compiler.judging.bounds import Bounded, bounded
from kernels_hub.compiler.judging.inputs import InputSet, JudgingInputs, judging_inputs
from kernels_hub.compiler.judging.roundoff import program_tolerance
from kernels_hub.numerics import norm_error

PATIENCE_S = 20.0
"""Seconds of the oracle after which no further set of inputs is prepared; the first `LEAST` are within three times."""
LEAST = 3
MOST_TRIPS = 4096
"""Of a loop that the data end: inputs on which it takes more do not judge, for on some it may never end."""

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Verdict:
    """Of one output on one set of inputs. reason: what is wrong, None where nothing is. judged: share of elements.

    worst: the largest error in units of its bound, infinite where something is not finite that is to be.
    """

    reason: str | None
    worst: float = 0.0
    judged: float = 1.0


def compare(name: str, actual: Array, expected: Array, bound: Array) -> Verdict:
    """An output's elements with the oracle's: each within its bound; where that is 0, the sign of a zero counts."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        got, wanted = (f"{one.dtype}{list(one.shape)}" for one in (actual, expected))
        return Verdict(f"wrong: output {name!r} is {got}, expected {wanted}", np.inf)
    if not expected.size:
        return Verdict(None)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = (widened(one).astype(wide) for one in (actual, expected))
    with np.errstate(all="ignore"):
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        if expected.dtype.kind in "iub":
            same = np.asarray(actual == expected)
        if wide is np.float64 and types.dtype(expected.dtype).is_float:
            same &= ~((bound == 0) & (e == 0) & (np.signbit(a) != np.signbit(e)))
        error = np.where(same, 0.0, np.abs(a - e))
        error = np.where(np.isnan(error), np.inf, error)
        ratio = np.where(error == 0, np.where(same, 0.0, np.inf), error / np.where(bound == 0, 0.0, bound))
        ratio = np.where(np.isinf(bound), 0.0, ratio)
    judged = float(np.mean(~np.isinf(bound)))
    worst = float(ratio.max())
    if worst <= 1:
        return Verdict(None, worst, judged)
    place = np.unravel_index(int(np.argmax(ratio)), expected.shape)
    count = int(np.count_nonzero(ratio > 1))
    at = ", ".join(str(int(one)) for one in place)
    return Verdict(
        f"wrong: element [{at}] of output {name!r} is {actual[place]!s}, expected {expected[place]!s} with an error "
        f"of {bound[place]:.3g} at most ({count} of {expected.size} elements are wrong)",
        worst, judged,
    )  # fmt: skip


def norm_difference(
    actual: Mapping[str, Array], expected: Mapping[str, Array], tolerances: Mapping[str, float]
) -> str | None:
    """None where floats are close in the norm, else which is not, and by how much. tolerances: see `norm_tolerances`.

    Only elements are compared that both have finite: where others may be, `compare` says by the elements' bounds.
    """
    for name, reference in expected.items():
        row = types.dtype(reference.dtype)
        if not _has_a_norm(row):
            continue
        a, e = widened(actual[name]), widened(reference)
        finite = np.isfinite(a) & np.isfinite(e)
        error = norm_error(a[finite], e[finite])
        if not error <= tolerances[name]:
            return f"wrong: output {name!r} differs from the oracle's by {error:.2g} of its norm"
    return None


def norm_tolerances(graph: Graph) -> dict[str, float]:
    """For each output, that of the coarsest float that it is computed in (see `numerics.TOLERANCES`).

    A wider float that is computed from a narrower one errs as much. Inputs and weights are exact, whatever they are.
    """
    coarsest: dict[Value, float] = {}
    for node in graph.live():
        before = max((coarsest[operand] for operand in node.operands), default=0.0)
        moves = not node.operands or Trait.VIEW in node.op.traits
        for value in node.results:
            own = 0.0 if moves or not _has_a_norm(value.dtype) else program_tolerance(value.dtype.name)
            coarsest[value] = max(before, own)
    return {
        name: max(program_tolerance(output.dtype.name), coarsest[output])
        if _has_a_norm(output.dtype)
        else 0.0
        for name, output in graph.outputs.items()
    }


def _has_a_norm(row: DType) -> bool:
    return row.kind not in {"bool", "int", "uint"}


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs, and what the oracle gives for them, with bounds. tolerances: of norms, by the name of an output."""

    inputs: InputSet
    oracle: Bounded
    tolerances: Mapping[str, float]
    ordinary: bool = False

    def against(self, outputs: Mapping[str, Array]) -> str | None:
        """What is wrong with outputs; None where nothing is."""
        for name, expected in self.oracle.values.items():
            if name not in outputs:
                return f"wrong: there is no output {name!r}"
            found = compare(name, np.asarray(outputs[name]), expected, self.oracle.bounds[name])
            if found.reason is not None:
                return f"{found.reason}, on inputs {self.inputs.name!r}"
        if (
            self.ordinary
            and (reason := norm_difference(outputs, self.oracle.values, self.tolerances)) is not None
        ):
            return f"{reason}, on inputs {self.inputs.name!r}"
        return None


@dataclass
class Judge:
    """See the module. Cases are prepared when they are first needed, and kept.

    graph: what is to be computed, with its weights, or these; calls in it are judged by what they call, since what
    overflows within one depends on the order of its sums. sizes: of its symbols. patience: seconds of the oracle
    for all sets. other_sizes: whether programs take other sizes of the symbols as well.
    """

    graph: Graph
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    weights: Mapping[str, Array] = field(default_factory=dict)
    patience: float = PATIENCE_S
    other_sizes: bool = True
    skipped: list[str] = field(default_factory=list)
    """Sets that do not judge, with the reason."""

    def __post_init__(self) -> None:
        self.graph = without_calls(self.graph)

    @cached_property
    def inputs(self) -> JudgingInputs:
        """The sets of inputs. Raises DimError where a symbol has no size."""
        with at_most_trips(MOST_TRIPS):
            return judging_inputs(
                self.graph, seed=self.seed, sizes=self.sizes, weights=self.weights,
                patience=self.patience / 4, other_sizes=self.other_sizes,
            )  # fmt: skip

    @cached_property
    def cases(self) -> list[Case]:
        """Sets that the oracle takes, with what it gives. Raises CompilerError where it takes none."""
        end = time.monotonic() + self.patience
        found: list[Case] = []
        first: CompilerError | None = None
        tolerances = norm_tolerances(self.graph)
        for index, one in enumerate(self.inputs):
            late = time.monotonic() - end
            if index and late > (0 if index >= LEAST else 2 * self.patience):
                self.skipped.append(f"{one.name}: the oracle's {self.patience:g} s were over")
                continue
            bindings = {name: size for name, size in one.sizes.items() if name in self.graph.symbols}
            try:
                with at_most_trips(MOST_TRIPS):
                    oracle = bounded(self.graph, one.arrays, bindings=bindings, weights=self.weights)
            except CompilerError as error:
                first = first or error
                self.skipped.append(f"{one.name}: {error}")
                continue
            found.append(Case(one, oracle, tolerances, not index))
        if not found:
            raise first or EvaluateError(f"graph {self.graph.name}: there is no input to judge by")
        return found

    @property
    def coverage(self) -> float:
        """Share of the elements of all outputs, over all cases, that are judged."""
        counts = [
            (np.count_nonzero(~np.isinf(bound)), bound.size)
            for case in self.cases
            for bound in case.oracle.bounds.values()
        ]
        return sum(one for one, _ in counts) / max(sum(size for _, size in counts), 1)

    def __call__(self, run: Run) -> str | None:
        """What is wrong with a program, on which inputs; None where nothing is. What `run` raises passes through."""
        for case in self.cases:
            if (reason := case.against(run(case.inputs.arrays))) is not None:
                return reason
        return None
