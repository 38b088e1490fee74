"""Exported programs that are imported as torch.export gives them.

Decomposing a program traces it once more, which takes longer than all else that importing does. It is not needed where
every op has a handler and what ops write in place can be told: `writes` says for each such op which op made the memory
that it writes to, or that the program has to be decomposed.

An op may write to what an op made whose results share memory with nothing, as long as only such ops have read it: none
of them gives a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from kernels_hub.compiler.importers.aten_ops import handler_of

if TYPE_CHECKING:
    from torch import SymFloat
    from torch._ops import OpOverload
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

IN_PLACE = frozenset({
    "add_.Tensor", "add_.Scalar", "sub_.Tensor", "sub_.Scalar", "mul_.Tensor", "mul_.Scalar", "div_.Tensor",
    "div_.Scalar", "addcmul_.default", "addcdiv_.default", "pow_.Scalar", "neg_.default", "abs_.default",
    "square_.default", "sqrt_.default", "rsqrt_.default", "reciprocal_.default", "floor_.default", "round_.default",
    "exp_.default", "log_.default", "sin_.default", "cos_.default", "erf_.default", "relu_.default", "relu6_.default",
    "silu_.default", "mish_.default", "hardswish_.default", "hardsigmoid_.default", "hardtanh_.default",
    "leaky_relu_.default", "elu_.default", "gelu_.default", "sigmoid_.default", "tanh_.default", "clamp_.default",
    "clamp_.Tensor", "clamp_min_.default", "clamp_max_.default", "logical_and_.default", "logical_or_.default",
    "logical_not_.default", "tril_.default", "triu_.default", "fill_.Scalar", "masked_fill_.Scalar", "scatter_.src",
    "scatter_.value", "scatter_add_.default", "index_add_.default", "index_copy_.default", "index_put_.default",
})  # fmt: skip
"""Ops that write their first argument, where it has the dtype of the others, and return it."""

_OF_ONE_DTYPE = ("masked_fill_", "fill_", "scatter_", "index_")
"""Beginnings of those that PyTorch itself refuses where what is written has another dtype."""

FRESH = frozenset({
    "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding",
    "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input", "batch_norm.default",
    "layer_norm.default", "group_norm.default", "rms_norm.default", "linear.default", "matmul.default",
    "max_pool2d.default", "scaled_dot_product_attention.default", "softmax.int", "log_softmax.int", "square.default",
    "relu6.default", "one_hot.default",
})  # fmt: skip
"""Ops made of others whose result shares memory with nothing. Other ops say it in their schema."""

_SHAPES_ALONE = {"expand_as.default": 1, "view_as.default": 1, "reshape_as.default": 1}
"""Ops that give a view -> the argument of which they take the shape alone."""

SAME = frozenset({"detach.default", "detach_.default", "alias.default"})
"""Ops whose result is their argument."""

NOTE = "kernels_hub gradient"
"""What `torch_autograd` says of an op's gradient, in the "custom" entry of its node's meta."""

_CONDITIONS = frozenset({"ge", "le", "gt", "lt", "eq", "ne", "and_", "or_", "not_"})
"""Conditions on sizes, which torch.export has checked and put into the ranges."""


def name_of(target: object) -> str:
    """ "add.Tensor" of an ATen overload, "library.op.default" of another's, the plain name of anything else."""
    if target.__class__.__name__ == "OpOverload":
        return str(target).removeprefix("aten.")
    return str(getattr(target, "__name__", target))


def is_size(example: object) -> bool:
    """Whether a node's value is a size."""
    return type(example).__name__ == "SymInt" or (isinstance(example, int) and not isinstance(example, bool))


def is_float_of_sizes(example: object) -> TypeGuard[SymFloat]:
    """Whether a node's value is a float that was computed from sizes."""
    return type(example).__name__ == "SymFloat"


def is_condition(name: str, example: object) -> bool:
    """Whether a node asks something of sizes."""
    return type(example).__name__ == "SymBool" or isinstance(example, bool) or name in _CONDITIONS


def functional(name: str) -> str:
    """The overload that computes what one of `IN_PLACE` writes: "add_.Tensor" -> "add.Tensor"."""
    return name.replace("_.", ".", 1)


def writes(program: ExportedProgram) -> dict[Node, Node] | None:
    """Op that writes in place, or gives its argument -> op that made that memory; None: decompose the program."""
    found: dict[Any, Any] = {}
    fresh: set[Any] = set()
    viewed: set[Any] = set()
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return None
        if node.op != "call_function":
            continue
        name = name_of(node.target)
        overload = node.target.__class__.__name__ == "OpOverload"
        if overload and name in IN_PLACE:
            root = found.get(node.args[0], node.args[0])
            if root not in fresh or root in viewed or not _is_alike(node):
                return None
            found[node] = root
            continue
        if overload and (name in SAME or _is_idle_dropout(name, node)):
            found[node] = found.get(node.args[0], node.args[0])
            continue
        example = node.meta.get("val")
        known = overload and handler_of(name) is not None
        of_sizes = is_size(example) or is_float_of_sizes(example) or is_condition(name, example)
        if not (known or name == "getitem" or of_sizes):
            return None
        if (overload and makes_memory(node.target)) or (name == "getitem" and node.args[0] in fresh):
            fresh.add(node)
            continue
        shape = node.args[_SHAPES_ALONE[name]] if name in _SHAPES_ALONE else None
        viewed.update(found.get(one, one) for one in node.all_input_nodes if one is not shape)
    return found


def makes_memory(op: OpOverload) -> bool:
    """Whether the results of an ATen overload share memory with nothing.

    A kernel of an op's own is held to what its schema says of aliases, `_unsafe_view` apart; an op made of others is
    not.
    """
    import torch

    name = name_of(op)
    if name in FRESH:
        return True
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    aliased = any(result.alias_info is not None for result in op._schema.returns)
    return not (composite or aliased or name == "_unsafe_view.default")


def _is_idle_dropout(name: str, node: Node) -> bool:
    return name == "dropout.default" and len(node.args) == 3 and not node.args[2]


def _is_alike(node: Any) -> bool:
    """Whether an op computes in the dtype of what it writes: others promote its operands to another, then cast back."""
    if name_of(node.target).startswith(_OF_ONE_DTYPE):
        return True
    written = node.args[0].meta["val"].dtype
    examples = (one.meta.get("val") for one in node.all_input_nodes)
    dtypes = {example.dtype for example in examples if hasattr(example, "dtype")}
    if written.is_floating_point:
        dtypes = {one for one in dtypes if one.is_floating_point or one.is_complex}
    return dtypes == {written}


def needed(program: ExportedProgram | GraphModule) -> set[Node]:
    """The ops that something comes of: a result, a write, or a check of sizes."""
    nodes: set[Any] = set()
    for node in reversed(program.graph.nodes):
        effect = node.op != "call_function" or node.meta.get("val") is None
        written = name_of(node.target) in IN_PLACE
        if effect or written or any(user in nodes for user in node.users):
            nodes.add(node)
    return nodes
