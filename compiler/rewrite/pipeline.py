"""The rewrite pipeline: the passes of `rewrite`, in order.

rewrite(graph).graph                              all of it
rewrite(graph, options=Options(rounding=False))   only what keeps every bit
rewrite(graph, (FoldConstants(), Rules("views", VIEWS)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.transform import rebuild
from kernels_hub.compiler.ir.uncollected import uncollected
from kernels_hub.compiler.rewrite.activations import ACTIVATIONS
from kernels_hub.compiler.rewrite.affine import AFFINE
from kernels_hub.compiler.rewrite.affine_inputs import AFFINE_INPUTS
from kernels_hub.compiler.rewrite.algebra import ALGEBRA
from kernels_hub.compiler.rewrite.attention import ATTENTION, SCALES
from kernels_hub.compiler.rewrite.clamp import CLAMP
from kernels_hub.compiler.rewrite.contraction import CONTRACTION
from kernels_hub.compiler.rewrite.engine import Rules
from kernels_hub.compiler.rewrite.few_bits import FewBits
from kernels_hub.compiler.rewrite.fold import FoldConstants, FoldParameters
from kernels_hub.compiler.rewrite.gated import GATED
from kernels_hub.compiler.rewrite.gradients import INFERENCE
from kernels_hub.compiler.rewrite.heads import FOUR_DIMS, HEADS
from kernels_hub.compiler.rewrite.indices import EVERYTHING
from kernels_hub.compiler.rewrite.loops import Loops
from kernels_hub.compiler.rewrite.neighbouring import NEIGHBOURING
from kernels_hub.compiler.rewrite.norms import NORMS
from kernels_hub.compiler.rewrite.parallel import PARALLEL
from kernels_hub.compiler.rewrite.parts import PARTS
from kernels_hub.compiler.rewrite.products import PRODUCTS
from kernels_hub.compiler.rewrite.regroup import REGROUP
from kernels_hub.compiler.rewrite.rotary import ROTARY
from kernels_hub.compiler.rewrite.rule import Options, Pass
from kernels_hub.compiler.rewrite.scores import Scores
from kernels_hub.compiler.rewrite.softmax import DIVIDED, SHIFTED, SOFTMAX
from kernels_hub.compiler.rewrite.transforms import Transposed
from kernels_hub.compiler.rewrite.views import CANCEL, SINK

SIMPLIFY = Rules("simplify", (*CANCEL, *PARTS, *REGROUP, *EVERYTHING, *ALGEBRA, *CLAMP, *SINK))

RECOGNISE = Rules("recognise", (*CANCEL, *NORMS, *ACTIVATIONS, *SOFTMAX, *HEADS, *ROTARY, *SCALES))

_RECOGNISED: tuple[Pass, ...] = (RECOGNISE, DIVIDED, RECOGNISE, SHIFTED, RECOGNISE, FOUR_DIMS, RECOGNISE)
"""Growths come between: each begins at what was recognised before it, and leaves views that the next run merges."""

INFERENCE_PASS = Rules("inference", INFERENCE)
"""Graphs that are to be differentiated go without it."""

_IN_LOOPS: tuple[Pass, ...] = (
    INFERENCE_PASS,
    FewBits(),
    FoldConstants(),
    SIMPLIFY,
    FoldConstants(),
    SIMPLIFY,
    *_RECOGNISED,
    ATTENTION,
    Scores(),
    Rules("gate", GATED),
    FoldConstants(),
)
"""For the bodies of loops."""

PIPELINE: tuple[Pass, ...] = (
    INFERENCE_PASS,
    Transposed(),
    FewBits(),
    FoldConstants(),
    SIMPLIFY,
    Loops(_IN_LOOPS),
    FoldConstants(),
    SIMPLIFY,
    Rules("contract", CONTRACTION),
    SIMPLIFY,
    *_RECOGNISED,
    ATTENTION,
    Scores(),
    Rules("gate", GATED),
    Rules("products", PRODUCTS),
    Rules("affine", (*CANCEL, *NEIGHBOURING, *AFFINE, *AFFINE_INPUTS)),
    Rules("parallel", PARALLEL),
    FoldConstants(),
    FoldParameters(),
)
"""Dead code is left out, and common subexpressions are one, by every rebuild. A pass is skipped where nothing has
changed since it ran last, so naming one again costs nothing."""


@dataclass(frozen=True)
class Rewritten:
    """A graph after all passes; `fired`: pass -> rule -> how often; str() is a table of that."""

    graph: Graph
    fired: dict[str, Counter[str]]

    @property
    def total(self) -> Counter[str]:
        """Rule -> how often, over all passes."""
        return sum(self.fired.values(), Counter())

    def __str__(self) -> str:
        rows = [
            f"{name:<16}{rule:<28}{count:>6}"
            for name, rules in self.fired.items()
            for rule, count in sorted(rules.items())
        ]
        return "\n".join([f"{'pass':<16}{'rule':<28}{'fired':>6}", *rows])


def rewrite(
    graph: Graph,
    passes: Sequence[Pass] = PIPELINE,
    *,
    options: Options | None = None,
    after: Callable[[str, Graph], object] | None = None,
) -> Rewritten:
    """The graph after each pass in order; the given one stays as it is.

    after(pass name, graph): called after each that ran.
    """
    options = options or Options()
    only_runs = graph.only_runs
    fired: dict[str, Counter[str]] = {}
    settled: list[Pass] = []
    with uncollected():
        graph = rebuild(graph).graph
        for one in passes:
            if one in settled:
                continue
            outcome = one.run(graph, options)
            if outcome.fired.total():
                graph, settled = outcome.graph, []
            settled.append(one)
            fired.setdefault(one.name, Counter()).update(outcome.fired)
            only_runs = only_runs or any(outcome.fired[rule.name] for rule in INFERENCE)
            graph.only_runs = only_runs
            if after is not None:
                after(one.name, graph)
    return Rewritten(graph, fired)
