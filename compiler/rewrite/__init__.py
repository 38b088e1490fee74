"""Rewrites: rules as data, a matcher, one engine that applies them, and the passes in order.

    pattern.py    what a rule looks for          rule.py       what a rule is
    engine.py     rules to fixpoint              explain.py    the nearest miss of a rule that did not fire
    pipeline.py   the passes, in order           outline.py    a recognised part becomes a named call
    growth.py     beside the graph, op by op
    fold.py algebra.py clamp.py views.py parts.py regroup.py indices.py affine.py affine_inputs.py    rules, by theme
    contraction.py products.py                                                                of products
    norms.py activations.py gated.py softmax.py rotary.py attention.py heads.py scores.py      what is recognised

Nothing here imports torch, triton or onnx.

`kernels_hub.compiler.rewrite` is this package, and also the function of `pipeline` by that name: it can be called.

>>> graph = Graph("negated twice")
>>> output = graph.output("y", -(-graph.input("x", ("n",), "float32")))
>>> print(rewrite(graph))
pass            rule                         fired
simplify        inverse_twice                    1
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """Importing a submodule names this package in its parent, over any function of that name that were there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `pipeline.rewrite`."""
        from kernels_hub.compiler.rewrite.pipeline import rewrite

        return rewrite(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
