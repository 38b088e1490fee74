"""Interface to torch.export: a traced program, the names of arguments, the reason of a failure."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.user_lines import user_line
from kernels_hub.compiler.ir.ops import OPS

if TYPE_CHECKING:
    import torch
    from torch.export import Dim, ExportedProgram

    from kernels_hub.compiler.importers.asked_tensors import Asks

TRACED_FROM = 2
"""The least size that torch.export takes a dynamic one for while it traces."""

# Composite ops with importers of their own: one op of the source, one spelling in the graph. Those of rows: see `core`.
KEPT = (
    "linear.default", "matmul.default", "scaled_dot_product_attention.default", "layer_norm.default",
    "native_layer_norm.default", "group_norm.default", "native_group_norm.default", "rms_norm.default",
    "silu.default", "mish.default", "log_sigmoid.default", "hardswish.default", "hardsigmoid.default",
    "softplus.default", "glu.default", "softmax.int", "log_softmax.int", "_safe_softmax.default",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_linear1d.vec",
    "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
    "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
    "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec",
    "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default",
    "upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default",
    "upsample_bicubic2d.default", "_upsample_bilinear2d_aa.vec", "_upsample_bilinear2d_aa.default",
    "_upsample_bicubic2d_aa.vec", "_upsample_bicubic2d_aa.default",
    "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
    "one_hot.default", "roll.default",
    "repeat_interleave.self_int", "select_scatter.default", "slice_scatter.default", "index_add.default",
    "index_copy.default", "unfold.default", "im2col.default",
    "tril.default", "triu.default", "logsumexp.default", "max_pool1d.default",
    "lerp.Tensor", "lerp.Scalar", "diagonal.default", "unbind.int", "sinc.default", "linalg_vector_norm.default",
    "std.correction", "cosine_similarity.default", "inverse.default", "linalg_inv.default", "linalg_solve.default",
    "det.default", "linalg_det.default", "slogdet.default", "linalg_slogdet.default", "logdet.default",
    "linalg_cholesky.default",
)  # fmt: skip


def trace(
    module: object, args: tuple[object, ...], kwargs: dict[str, Any], dynamic_shapes: Any, *, strict: bool
) -> tuple[ExportedProgram, Asks]:
    """The exported program, and what was asked. Raises ImportFailure with the cause where torch.export cannot."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ImportFailure(f"import_torch takes a torch.nn.Module, not {type(module).__name__}")
    from kernels_hub.compiler.importers.asked_tensors import Asking, Asks, settled
    from kernels_hub.compiler.importers.torch_autograd import listening

    of_inference = _of_inference_mode(module)
    with (
        _told(type(module).__name__),
        torch.inference_mode(of_inference),
        torch.no_grad(),
        _held_alike(module),
        _hooks_of_all_see(module),
    ):
        args, kwargs = distinct((args, kwargs))
        if strict:  # Dynamo reads the code of the forward instead of running it: see `import_torch`
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=True)
            return program, Asks()
        asking = Asking(module)

        def once() -> ExportedProgram:
            with listening(module, asking):
                return _exported(module, args, kwargs, dynamic_shapes)

        return settled(once(), asking, once, args=args, kwargs=kwargs), asking.asks()


def _of_inference_mode(module: torch.nn.Module) -> bool:
    """Whether a module was made in inference mode: a trace needs all tensors made there, or none."""
    return any(tensor.is_inference() for tensor in [*module.parameters()] or module.buffers())


@contextmanager
def _held_alike(module: torch.nn.Module) -> Iterator[None]:
    """With copies of the tensors made in the other mode that modules hold beside their parameters, such as the anchors
    that a detector remembers of its last call.
    """
    import torch
    from torch.utils import _pytree as pytree

    mode = torch.is_inference_mode_enabled()

    def other(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_inference() is not mode

    held = [
        (table, name, value)
        for one in module.modules()
        for table in (vars(one), one._buffers)
        for name, value in table.items()
        if name not in {"_parameters", "_buffers", "_modules"} and any(map(other, pytree.tree_leaves(value)))
    ]
    for table, name, value in held:
        table[name] = pytree.tree_map(lambda one: one.detach().clone() if other(one) else one, value)
    try:
        yield
    finally:
        for table, name, value in held:
            table[name] = value


_TRACERS = (
    "torch.export.",
    "torch._export.",
    "torch._functorch.",
    "torch.fx.",
    "kernels_hub.compiler.importers.",
)
"""Packages whose modules a trace runs beside those of the model."""


@contextmanager
def _hooks_of_all_see(module: torch.nn.Module | None) -> Iterator[None]:
    """With hooks of all modules (`register_module_forward_hook`) that are called for the model's modules alone.

    torch.export runs it inside of modules of its own, and then graphs: what a hook does to their results, too, the
    original never computes. module: the model; None where none of it runs.
    """
    import torch

    tables: tuple[Any, ...] = (
        torch.nn.modules.module._global_forward_pre_hooks,
        torch.nn.modules.module._global_forward_hooks,
    )
    if not any(tables):
        yield
        return
    own = set() if module is None else set(module.modules())

    def narrowed(hook: Callable[..., object]) -> Callable[..., object]:
        def of_the_model(called: torch.nn.Module, *rest: object) -> object:
            is_seen = called in own or not f"{type(called).__module__}.".startswith(_TRACERS)
            return hook(called, *rest) if is_seen else None

        return of_the_model

    replaced = [(table, key, hook, narrowed(hook)) for table in tables for key, hook in list(table.items())]
    for table, key, _, other in replaced:
        table[key] = other
    try:
        yield
    finally:
        for table, key, hook, other in replaced:
            if table.get(key) is other:  # it may have been removed meanwhile
                table[key] = hook


def _exported(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """The program of torch.export, also where it cannot prove conditions on sizes: these are assertions or guards of
    the program then, and `Sizes` sees which of them hold, or tell strides alone.
    """
    import torch
    from torch._dynamo.exc import UserError, UserErrorType

    def exported(shapes: object, *, deferred: bool) -> ExportedProgram:
        return torch.export.export(
            module, args, kwargs, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=deferred
        )

    hints = _hints(dynamic_shapes)
    if hints is not None:  # asks for no proofs, of which most models lack one: three traces in place of one
        with suppress(Exception):  # what is wrong with the model, the next attempt says
            program = exported(hints, deferred=False)
            if _ranges_as_given(program, _dims(dynamic_shapes)):
                return program
    try:
        return exported(dynamic_shapes, deferred=False)
    except UserError as error:
        if error.error_type is not UserErrorType.CONSTRAINT_VIOLATION:
            raise
        with suppress(Exception):  # the first attempt says what is wrong
            return exported(dynamic_shapes, deferred=True)
        raise


def _hints(dynamic_shapes: object) -> object:
    """Dims as hints, by which torch.export proves nothing; None where there are none, or one has several places."""
    from torch.export import Dim
    from torch.utils import _pytree as pytree

    dims = _dims(dynamic_shapes)
    if (
        not dims
        or not all(type(one) is Dim for one in dims)
        or len({one.__name__ for one in dims}) < len(dims)
    ):
        return None
    return pytree.tree_map_only(Dim, lambda one: Dim.AUTO(min=one.min, max=one.max), dynamic_shapes)


def _dims(dynamic_shapes: object) -> list[Dim]:
    """The dims that are free to change."""
    from torch.utils import _pytree as pytree

    return [one for one in pytree.tree_leaves(dynamic_shapes) if one is not None and not isinstance(one, int)]


def _ranges_as_given(program: ExportedProgram, dims: Sequence[Dim]) -> bool:
    """Give the symbols of a program the ranges of dims, not those that it traced with: whether each dim has one."""
    from torch.utils._sympy.value_ranges import ValueRanges

    shapes = [getattr(one.meta.get("val"), "shape", ()) for one in program.graph.find_nodes(op="placeholder")]
    found = {dim.node.expr: None for shape in shapes for dim in shape if not isinstance(dim, int)}
    if len(found) != len(dims) or not all(one.is_Symbol for one in found):
        return False
    for symbol, dim in zip(found, dims, strict=True):
        known = program.range_constraints[symbol]
        least = dim.min if known.lower == TRACED_FROM else known.lower
        program.range_constraints[symbol] = ValueRanges(least, known.upper)
    return True


def distinct(arguments: object) -> Any:
    """The arguments with a copy of each tensor, which shares memory with no other argument and no state of a module.

    torch.export makes one input of what is one tensor: given twice as an example, or a parameter of the module. Calls
    bring others. Copies have the shape, dtype, layout and requires_grad of the tensor.
    """
    import torch
    from torch.utils import _pytree as pytree

    def copied(tensor: Any) -> Any:
        with torch.no_grad():
            made = tensor.detach().clone()
        return made.requires_grad_() if tensor.requires_grad else made

    return pytree.tree_map_only(torch.Tensor, copied, arguments)


def decomposed(program: ExportedProgram, name: str) -> Any:
    """The program in core ATen, `KEPT`, and what rows of the op table import; no writes. Raises ImportFailure.

    name: of the module, for messages.
    """
    import torch

    from kernels_hub.compiler.importers.data_assertions import assertions_kept

    of_inference = any(tensor.is_inference() for tensor in program.state_dict.values())
    with _told(name), torch.inference_mode(of_inference), torch.no_grad(), _hooks_of_all_see(None):
        table = torch.export.default_decompositions()
        for kept in (*KEPT, *(imported for row in OPS.values() for imported in row.torch)):
            packet, _, overload = kept.partition(".")
            # A row may name an overload that this release of PyTorch does not have.
            op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
            if op in table:
                table.pop(op)
        with warnings.catch_warnings():  # torch.export, of its own copies
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            with assertions_kept(program):
                return program.run_decompositions(table)


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except ImportFailure as error:  # of what watches the forward
        raise ImportFailure(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        raise ImportFailure(f"torch.export cannot trace {name}: {cause(error)}") from error


def cause(error: BaseException) -> str:
    """The first paragraph of what torch.export says, and the line of the module that it was at."""
    lines = [line.strip() for line in str(error).splitlines()]
    first: list[str] = []
    for line in lines:
        if not line and first:
            break
        if line and not line.startswith("Traceback"):
            first.append(line)
    text = " ".join(first)[:400] or type(error).__name__
    place = user_line(str(error))
    return f"{type(error).__name__}: {text}" + (f"; at {place}" if place else "")


def place_of(node: torch.fx.Node) -> str:
    """Where an op of the program comes from: the module's path and class, and the source line."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = list(stack.values())[-1] if stack else ("", "")
    name = getattr(kind, "__name__", str(kind)).rsplit(".", 1)[-1]
    where = f"{path or 'forward'} ({name})" if name else path
    line = user_line(node.meta.get("stack_trace") or "")
    return ", ".join(part for part in (where, line) if part)


def paths_of(module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    """A name for each leaf of the arguments: the parameter of forward, then the path in it."""
    return [f"{name}.{path}" if path else name for name, path, _ in leaves_of(module, args, kwargs)]


def leaves_of(
    module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[str, str, Any]]:
    """(argument, path in it, leaf) in the order of torch.export's user inputs."""
    from torch.utils import _pytree as pytree

    name_children((args, kwargs))
    return [
        (name, path_text(path), leaf)
        for name, value in arguments_of(module, args, kwargs)
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
    ]


def name_children(tree: object) -> None:
    """Have classes of a tree that others registered without names for children number them.

    torch.export asks for the names; diffusers registers its outputs without.
    """
    from torch.utils import _pytree as pytree

    kind = type(tree)
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        return
    children = node.flatten_fn(tree)[0]
    if node.flatten_with_keys_fn is None:
        flatten = node.flatten_fn

        def flatten_with_keys(value: object) -> tuple[list[tuple[Any, Any]], Any]:
            inner, told = flatten(value)
            names: list[Any] = [pytree.SequenceKey(index) for index in range(len(inner))]
            if isinstance(value, dict) and isinstance(told, list):
                names = [pytree.MappingKey(name) for name in told]
            return list(zip(names, inner, strict=True)), told

        pytree.SUPPORTED_NODES[kind] = node._replace(flatten_with_keys_fn=flatten_with_keys)
    for child in children:
        name_children(child)


def arguments_of(
    module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[str, Any]]:
    """Arguments with the names that forward gives them, in the order of torch.export's user inputs."""
    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(len(args) - len(names))]
        elif parameter.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            names.append(parameter.name)
    return [*zip(names, args, strict=False), *kwargs.items()]


def path_text(path: Sequence[object]) -> str:
    """ "past.0.key" of a pytree's key path."""
    return ".".join(
        str(next(getattr(key, kind) for kind in ("key", "idx", "name") if hasattr(key, kind))) for key in path
    )
