"""Exported programs that are imported as torch.export gives them.

Decomposing a program traces it once more, which takes longer than all else that importing does. It is not needed where
every op has a handler and what ops write in place can be told: `writes` says for each such op which op made the memory
that it writes to, or that the program has to be decomposed.

An op may write to memory that ops of the program made, as long as nothing reads it later but what the op returns and
the other names of that tensor: not what it is a view of, and no other view. Where the tensor is a part of another, by
rows and slices (`y[:, t] = x`), that may be read later, and no other view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from kernels_hub.compiler.importers.aten_ops import handler_of

if TYPE_CHECKING:
    from torch import SymBool, SymFloat
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

    from kernels_hub.compiler.importers.aten_ops.call import Layout

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
    "scatter_reduce_.two", "index_reduce_.default", "fill_.Tensor", "copy_.default",
})  # fmt: skip
"""Ops that write their first argument, where it has the dtype of the others, and return it."""

PUT_BACK = {"select.int": "select_scatter.default", "slice.Tensor": "slice_scatter.default"}
"""Ops that give a part of a tensor -> what gives the tensor with another part in its place."""

_OF_ONE_DTYPE = ("masked_fill_", "fill_", "scatter_", "index_")
"""Beginnings of those that PyTorch itself refuses where what is written has another dtype."""

FRESH = frozenset({
    "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding",
    "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input", "batch_norm.default",
    "layer_norm.default", "group_norm.default", "rms_norm.default", "linear.default", "matmul.default",
    "max_pool2d.default", "scaled_dot_product_attention.default", "softmax.int", "log_softmax.int", "square.default",
    "relu6.default", "one_hot.default", "pad.default",
})  # fmt: skip
"""Ops made of others whose result shares memory with nothing. Other ops say it in their schema."""

_SHAPES_ALONE = {"expand_as.default": 1, "view_as.default": 1, "reshape_as.default": 1}
"""Ops that give a view -> the argument of which they take the shape alone."""

SAME = frozenset({"detach.default", "detach_.default", "alias.default"})
"""Ops whose result is their argument."""

NOTE = "kernels_hub gradient"
"""What `torch_autograd` says of an op's gradient, in the "custom" entry of its node's meta."""

ITSELF = "kernels_hub itself"
"""The same of an alias that `torch_autograd` has put between a tensor and its `contiguous()`: eager has none there."""

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


def is_comparison_of_sizes(example: object) -> TypeGuard[SymBool]:
    """Whether a node's value is the truth of a comparison of sizes."""
    return type(example).__name__ == "SymBool"


def layout_of(node: Node, *, checked: bool) -> Layout | None:
    """Strides and offset of the first operand of `as_strided`; None of other ops.

    checked: whether arguments have the strides of the examples at each call. None where they may have others.
    """
    if not checked or name_of(node.target) != "as_strided.default":
        return None
    example = cast("Node", node.args[0]).meta["val"]
    return example.stride(), example.storage_offset()


def is_condition(name: str, example: object) -> bool:
    """Whether a node asks something of sizes."""
    return type(example).__name__ == "SymBool" or isinstance(example, bool) or name in _CONDITIONS


def functional(name: str) -> str:
    """The overload that computes what one of `IN_PLACE` writes: "add_.Tensor" -> "add.Tensor"."""
    return name.replace("_.", ".", 1)


@dataclass(frozen=True)
class Writes:
    """names: op that writes in place, or gives its argument -> op that made that tensor.

    parts: op that writes to a part of a tensor -> the part, what that is a part of, and so on.
    """

    names: dict[Node, Node] = field(default_factory=dict)
    parts: dict[Node, list[Node]] = field(default_factory=dict)

    def __contains__(self, node: Node) -> bool:
        return node in self.names or node in self.parts

    def made(self, node: Node) -> Node:
        """The op that made the tensor that an op gives."""
        return self.names.get(node, node)

    def written_by(self, node: Node) -> Node:
        """The op that made the tensor that an op writes to, or to a part of."""
        if node not in self.parts:
            return self.names[node]
        return self.made(cast("Node", self.parts[node][-1].args[0]))

    def parts_of(self, node: Node) -> list[Node]:
        """The tensor that an op gives, where it is a part of another, then what that is a part of, and so on."""
        found: list[Node] = []
        node = self.made(node)
        while name_of(node.target) in PUT_BACK:
            found.append(node)
            node = self.made(cast("Node", node.args[0]))
        return [*found, *self.parts.get(node, ())]


def writes(program: ExportedProgram) -> Writes | None:
    """What the ops write that write in place; None: decompose the program."""
    found = Writes()
    memory = _Memory(program)
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return None
        if node.op != "call_function":
            continue
        name = name_of(node.target)
        overload = node.target.__class__.__name__ == "OpOverload"
        writing = overload and name in IN_PLACE
        if writing or (overload and (name in SAME or _is_idle_dropout(name, node))):
            root = found.made(cast("Node", node.args[0]))
            if not writing or (_is_alike(node) and memory.is_own(root, node, found.names)):
                found.names[node] = root
            else:
                found.parts[node] = found.parts_of(root)
                if not (_is_alike(node) and _is_part(node, found)):
                    return None
                if not memory.is_own(found.written_by(node), node, found.names):
                    return None
            memory.share(node, [root])
            continue
        example = node.meta.get("val")
        of_sizes = is_size(example) or is_float_of_sizes(example) or is_condition(name, example)
        if not (of_sizes or name == "getitem" or (overload and handler_of(name) is not None)):
            return None
        maker: Any = node.args[0] if name == "getitem" else node
        if not (of_sizes or makes_memory(maker.target)):
            shape = node.args[_SHAPES_ALONE[name]] if name in _SHAPES_ALONE else None
            memory.share(node, [one for one in node.all_input_nodes if one is not shape])
    return found


class _Memory:
    """Which nodes of a program may be tensors of the same memory."""

    def __init__(self, program: ExportedProgram) -> None:
        self._places = {node: place for place, node in enumerate(program.graph.nodes)}
        self._beside: dict[Any, set[Any]] = {}

    def share(self, node: Node, others: Iterable[Node]) -> None:
        """A node may be, or see, the memory of others."""
        groups = [self._beside.setdefault(one, {one}) for one in (node, *others)]
        largest = max(groups, key=len)  # the others join it: a chain of views takes no square of its length
        for group in groups:
            if group is not largest:
                largest |= group
                self._beside.update(dict.fromkeys(group, largest))

    def is_own(self, root: Node, write: Node, names: Mapping[Node, Node]) -> bool:
        """Whether nothing but a tensor's names sees what is written to it: no argument, no view that is used later."""
        return all(
            one.op == "call_function"
            and (
                one is root
                or names.get(one) is root
                or all(self._places[user] <= self._places[write] for user in one.users)
            )
            for one in self._beside.get(root, {root})
        )


def makes_memory(op: object) -> bool:
    """Whether the results of an op, an ATen overload, share memory with nothing.

    A kernel of an op's own is held to what its schema says of aliases, `_unsafe_view` apart; an op made of others is
    not.
    """
    import torch

    if not isinstance(op, torch._ops.OpOverload):
        return False
    name = name_of(op)
    if name in FRESH:
        return True
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    aliased = any(result.alias_info is not None for result in op._schema.returns)
    return not (composite or aliased or name == "_unsafe_view.default")


def _is_part(node: Node, found: Writes) -> bool:
    """Whether an op writes to a part of a tensor, and says nothing of gradients: that would be of all of the tensor."""
    return bool(found.parts[node]) and NOTE not in (node.meta.get("custom") or {})


def _is_idle_dropout(name: str, node: Node) -> bool:
    return name == "dropout.default" and len(node.args) == 3 and not node.args[2]


def _is_alike(node: Any) -> bool:
    """Whether an op computes in the dtype of what it writes: others promote its operands to another, then cast back."""
    if name_of(node.target).startswith(_OF_ONE_DTYPE):
        return True
    written = node.args[0].meta["val"].dtype
    if name_of(node.target) == "copy_.default":  # which casts
        return not (written.is_complex or node.args[1].meta["val"].is_complex())
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
