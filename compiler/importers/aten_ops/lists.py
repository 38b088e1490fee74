"""Ops on lists of tensors (`torch._foreach_add`): the op of one tensor, for each.

Overloads say what the second operand is: a tensor for each (List), one tensor, a number, or a number for each.
"""

from __future__ import annotations

from dataclasses import replace

from kernels_hub.compiler.importers.aten_ops.call import AtenCall, Handler, Scalar, aten, handler_of
from kernels_hub.compiler.importers.aten_ops.reduce import vector_norm
from kernels_hub.compiler.ir.graph import Value

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "lgamma", "log",
    "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc", "max",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max")
_OF_THREE = ("addcmul", "addcdiv")


def _each(names: tuple[str, str]) -> Handler:
    """The op of one tensor: of tensors (the first name), and of numbers."""

    def handler(
        call: AtenCall, tensors: list[Value], *others: Value | Scalar, **options: Scalar
    ) -> list[Value]:
        found = []
        for index, x in enumerate(tensors):
            one = [other[index] if isinstance(other, list) else other for other in others]
            name = names[0] if all(isinstance(other, Value) for other in one) else names[1]
            own = handler_of(name)
            assert own is not None, name
            found.append(own(replace(call, name=name, results=(call.results[index],)), x, *one, **options))
        return found

    return handler


for _name in _UNARY:
    aten(f"_foreach_{_name}.default")(_each((f"{_name}.default", "")))
for _name in _BINARY:
    _of_tensors = {
        "pow": "pow.Tensor_Tensor",
        "maximum": "maximum.default",
        "minimum": "minimum.default",
    }.get(_name, f"{_name}.Tensor")
    _of_numbers = {
        "pow": "pow.Tensor_Scalar",
        "maximum": "clamp_min.default",
        "minimum": "clamp_max.default",
    }.get(_name, f"{_name}.default" if _name.startswith("clamp") else f"{_name}.Scalar")
    for _overload in ("List", "Scalar", "ScalarList", "Tensor"):
        aten(f"_foreach_{_name}.{_overload}")(_each((_of_tensors, _of_numbers)))
aten("_foreach_lerp.List", "_foreach_lerp.Scalar", "_foreach_lerp.ScalarList")(
    _each(("lerp.Tensor", "lerp.Scalar"))
)


def _of_three(name: str) -> Handler:
    def handler(
        call: AtenCall, tensors: list[Value], left: list[Value], right: list[Value], values: Scalar
    ) -> list[Value]:
        own = handler_of(f"{name}.default")
        assert own is not None
        return [
            own(
                replace(call, results=(call.results[index],)), x, left[index], right[index],
                value=values[index] if isinstance(values, list) else values,
            )
            for index, x in enumerate(tensors)
        ]  # fmt: skip

    return handler


for _name in _OF_THREE:
    aten(f"_foreach_{_name}.Scalar", f"_foreach_{_name}.ScalarList")(_of_three(_name))


@aten("_foreach_norm.Scalar")
def norms(call: AtenCall, tensors: list[Value], order: Scalar, dtype: object) -> list[Value]:
    """The norm of each tensor."""
    del dtype  # that of the results
    return [
        vector_norm(replace(call, results=(of,)), x, order, None, False)
        for x, of in zip(tensors, call.results, strict=True)
    ]
