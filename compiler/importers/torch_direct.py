"""Exported programs that are imported as torch.export gives them.

Decomposing a program traces it once more, which takes longer than all else that importing does. It is not needed where
every op has a handler and what ops write in place can be told: `writes` says for each such op which op made the memory
that it writes to, or that the program has to be decomposed.

An op may write to what an op of `FRESH` made, as long as only such ops have read it: none of them gives a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.importers.aten_ops import handler_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

IN_PLACE = frozenset({
    "add_.Tensor", "add_.Scalar", "sub_.Tensor", "sub_.Scalar", "mul_.Tensor", "mul_.Scalar", "div_.Tensor",
    "div_.Scalar", "relu_.default", "relu6_.default", "silu_.default", "mish_.default", "hardswish_.default",
    "hardsigmoid_.default", "hardtanh_.default", "leaky_relu_.default", "elu_.default", "gelu_.default",
    "sigmoid_.default", "tanh_.default", "exp_.default", "clamp_.default", "clamp_min_.default", "clamp_max_.default",
    "masked_fill_.Scalar",
})  # fmt: skip
"""Ops that write their first argument, where it has the dtype of the others, and return it."""

FRESH = frozenset({
    "conv1d.default", "conv2d.default", "conv3d.default", "conv2d.padding", "convolution.default",
    "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input", "batch_norm.default",
    "layer_norm.default", "group_norm.default", "linear.default", "mm.default", "bmm.default", "addmm.default",
    "matmul.default", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "add.Scalar", "sub.Scalar", "mul.Scalar",
    "div.Scalar", "relu.default", "silu.default", "gelu.default", "mish.default", "hardswish.default",
    "hardsigmoid.default", "hardtanh.default", "leaky_relu.default", "elu.default", "sigmoid.default", "tanh.default",
    "exp.default", "clone.default", "softmax.int", "embedding.default", "cat.default", "max_pool2d.default",
    "avg_pool2d.default", "scaled_dot_product_attention.default",
})  # fmt: skip
"""Ops whose result shares memory with nothing."""

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
        if overload and name in FRESH:
            fresh.add(node)
            continue
        if overload and (name in SAME or _is_idle_dropout(name, node)):
            found[node] = found.get(node.args[0], node.args[0])
            continue
        viewed.update(found.get(one, one) for one in node.all_input_nodes)
        example = node.meta.get("val")
        known = overload and handler_of(name) is not None
        if not (known or name == "getitem" or is_size(example) or is_condition(name, example)):
            return None
    return found


def _is_idle_dropout(name: str, node: Node) -> bool:
    return name == "dropout.default" and len(node.args) == 3 and not node.args[2]


def _is_alike(node: Any) -> bool:
    """Whether all tensors that an op reads have the dtype of what it writes, masks apart."""
    if name_of(node.target).startswith("masked_fill_"):
        return True
    examples = (one.meta.get("val") for one in node.all_input_nodes)
    return len({example.dtype for example in examples if hasattr(example, "dtype")}) == 1


def needed(program: ExportedProgram | GraphModule) -> set[Node]:
    """The ops that something comes of: a result, a write, or a check of sizes."""
    nodes: set[Any] = set()
    for node in reversed(program.graph.nodes):
        effect = node.op != "call_function" or node.meta.get("val") is None
        written = name_of(node.target) in IN_PLACE
        if effect or written or any(user in nodes for user in node.users):
            nodes.add(node)
    return nodes
