"""What the torch importer asks of torch.export: a traced program, the names of arguments, the reason of a failure."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kernels_hub.compiler.errors import ImportFailure

# Composite ops that are imported as they are: one op of the source, one spelling in the graph.
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
    "upsample_bicubic2d.default", "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
    "one_hot.default", "roll.default",
    "repeat_interleave.self_int", "select_scatter.default", "slice_scatter.default", "index_add.default",
    "index_copy.default", "unfold.default", "tril.default", "triu.default", "logsumexp.default", "max_pool1d.default",
    "lerp.Tensor", "lerp.Scalar", "diagonal.default", "unbind.int", "sinc.default", "linalg_vector_norm.default",
    "std.correction", "cosine_similarity.default",
)  # fmt: skip


def trace(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, *, strict: bool
) -> Any:
    """The exported program. Raises ImportFailure with the cause where torch.export cannot."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ImportFailure(f"import_torch takes a torch.nn.Module, not {type(module).__name__}")
    from kernels_hub.compiler.importers.torch_autograd import listening

    args, kwargs = distinct((args, kwargs))
    with _told(type(module).__name__), torch.no_grad():
        if strict:  # Dynamo reads the code of the forward instead of running it: see `import_torch`
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=True)
        with listening(module):
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)


def distinct(arguments: Any) -> Any:
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


def decomposed(program: Any, name: str) -> Any:
    """The program of a module of that name in core ATen and `KEPT`, without writes. Raises ImportFailure."""
    import torch

    with _told(name), torch.no_grad():
        table = torch.export.default_decompositions()
        for kept in KEPT:
            packet, overload = kept.split(".")
            op = getattr(getattr(torch.ops.aten, packet), overload)
            if op in table:
                table.pop(op)
        with warnings.catch_warnings():  # torch.export, of its own copies
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            return program.run_decompositions(table)


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
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
    place = _user_line(str(error))
    return f"{type(error).__name__}: {text}" + (f"; at {place}" if place else "")


_OURS = "/importers/torch_autograd.py"
"""What calls the forward."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _user_line(stack: str) -> str:
    """The innermost frame of a printed stack that is neither PyTorch's own nor the importer's."""
    frames = [
        one
        for one in _FRAME.findall(stack)
        if not one[0].replace("\\", "/").endswith(_OURS) and "/torch/" not in one[0].replace("\\", "/")
    ]
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f"{file}:{line} in {function}"


def place_of(node: Any) -> str:
    """Where an op of the program comes from: the module's path and class, and the source line."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = list(stack.values())[-1] if stack else ("", "")
    name = getattr(kind, "__name__", str(kind)).rsplit(".", 1)[-1]
    where = f"{path or 'forward'} ({name})" if name else path
    line = _user_line(node.meta.get("stack_trace") or "")
    return ", ".join(part for part in (where, line) if part)


def paths_of(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """A name for each leaf of the arguments: the parameter of forward, then the path in it."""
    return [f"{name}.{path}" if path else name for name, path, _ in leaves_of(module, args, kwargs)]


def leaves_of(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """(argument, path in it, leaf) in the order of torch.export's user inputs."""
    from torch.utils import _pytree as pytree

    return [
        (name, path_text(path), leaf)
        for name, value in arguments_of(module, args, kwargs)
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
    ]


def arguments_of(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Arguments with the names that forward gives them, in the order of torch.export's user inputs."""
    names: list[str] = []
    for one in inspect.signature(module.forward).parameters.values():
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{one.name}_{i}" for i in range(len(args) - len(names))]
        elif one.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            names.append(one.name)
    return [*zip(names, args, strict=False), *kwargs.items()]


def path_text(path: Sequence[Any]) -> str:
    """ "past.0.key" of a pytree's key path."""
    return ".".join(
        str(next(getattr(key, kind) for kind in ("key", "idx", "name") if hasattr(key, kind))) for key in path
    )
