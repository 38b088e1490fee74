"""Scalar expressions in Triton's language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels_hub.compiler.codegen.scalar import DIVISIONS, Scalars
from kernels_hub.compiler.codegen.triton.spellings import SPELLINGS
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.types import BOOL, DType
from kernels_hub.compiler.schedule.kernel import Compute


class Triton(Scalars):
    """Triton's language; float16 and bfloat16 are widened when they are loaded."""

    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""
        text = args[0]
        for arg in args[1:]:
            text = f"tl.{kind}imum({text}, {arg})"
        return text

    def quotient(self, kind: str, a: str, b: str, *, natural: bool) -> str:
        """floordiv or mod, rounded down."""
        if natural:
            return f"({a} {'//' if kind == 'floordiv' else '%'} {b})"
        below = f"(({a} - tl.where({a} < 0, {b} - 1, 0)) // {b})"  # Triton's // rounds towards zero
        return below if kind == "floordiv" else f"({a} - {below} * {b})"

    def literal(self, value: Any, dtype: DType) -> str:
        """A number of a dtype, exactly."""
        if dtype is BOOL:
            return "True" if value else "False"
        if dtype.is_integer:
            return f"({int(value)})" if value < 0 else str(int(value))
        number = float(np.asarray(value).astype(dtype.numpy).astype(np.float64))
        if math.isnan(number) or math.isinf(number):
            return f'float("{number}")'
        return f"({number!r})" if math.copysign(1, number) < 0 else repr(number)

    def conjunction(self, tests: Sequence[str]) -> str:
        """All of some comparisons."""
        return " & ".join(f"({test})" for test in tests) if tests else "True"

    def cast(self, text: str, source: DType, to: DType, *, saturate: bool = False) -> str:
        """A value of one dtype as another."""
        if source is to:
            return text
        if to is BOOL:
            return f"({text} != 0)"
        compute, target = to.compute.triton, to.triton
        if target is None:
            raise EngineError(f"Triton has no element type for {to}")
        if saturate and source is not BOOL and (to.is_integer or to.bits < 32):
            low, high = (self.literal(limit, to) for limit in to.limits)
            text = (
                f"tl.clamp({text}, {low}, {high})"
                if source.is_float
                else f"tl.minimum(tl.maximum({text}, {low}), {high})"
            )
        text = f"({text}).to({target})"
        return text if compute == target else f"{text}.to({compute})"

    def compute(self, one: Compute, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        """A pointwise op of variables and literals."""
        name, first = one.op.name, dtypes[0]
        if name == "cast":
            return self.cast(args[0], first, one.dtype, saturate=bool(one.attrs.get("saturate")))
        target = one.dtype.compute.triton
        if name == "bitcast":
            narrow = args[0] if first.compute is first else f"({args[0]}).to({first.triton})"
            text = f"({narrow}).to({one.dtype.triton}, bitcast=True)"
            return text if one.dtype.compute is one.dtype else f"{text}.to({target})"
        template = SPELLINGS.of(one.op, first.kind)
        if template is None or target is None:
            raise EngineError(f"{name} of {first} has no Triton spelling")
        texts = list(args)
        divides = name in DIVISIONS and first.is_integer
        if divides:
            texts[1] = f"tl.where({args[1]} == 0, 1, {args[1]})"
        text = template.format(*texts, dtype=target)
        if divides:
            text = f"tl.where({args[1]} == 0, 0, {text})"
        if self.round_ops and one.dtype.compute is not one.dtype:
            text = f"({text}).to({one.dtype.triton}).to({target})"
        return text
