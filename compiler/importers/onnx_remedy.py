"""Suggests what to bind so that an ONNX model can be imported: options to copy, found by trying."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from kernels_hub.compiler.errors import CompilerError, OnnxImportError

_SIZES = (640, 64, 16)
"""What is tried for axes: image sides and samples first, then lengths that embeddings of positions are sure to have."""
_MOST_AXES = 6
"""With more open axes than these, the fewest that have to be bound are not searched for."""


def remedy(
    axes: Sequence[str], wanted: Sequence[str], try_with: Callable[[Mapping[str, int]], CompilerError | None]
) -> str:
    """Options that let a model be imported, in Python and on the command line; "" where none are known.

    axes: those that are open. wanted: inputs whose values have to be given. try_with: imports with these axes bound.
    """
    bound = _fewest(axes, try_with)
    if bound is None:
        if not wanted:
            return ""
        bound = {}
    python, options = [], []
    if bound:
        python.append(f"dims={bound!r}")
        options += [f"--dim {_quoted(f'{name}={size}')}" for name, size in bound.items()]
    if wanted:
        python.append(f"values={{{', '.join(f'{name!r}: …' for name in wanted)}}}")
        options += [f"--value {_quoted(f'{name}=…')}" for name in wanted]
    if not options:
        return ""
    return f"it can be imported with {', '.join(python)} (on the command line: {' '.join(options)})"


def _fewest(
    axes: Sequence[str], try_with: Callable[[Mapping[str, int]], CompilerError | None]
) -> dict[str, int] | None:
    """The fewest axes that have to be bound, with a size for each; None where that does not help."""
    for size in _SIZES if axes else ():
        bound = dict.fromkeys(axes, size)
        error = try_with(bound)
        if error is not None and not _only_values(error):
            continue
        for axis in axes if len(axes) <= _MOST_AXES else ():
            less = {name: own for name, own in bound.items() if name != axis}
            error = try_with(less)
            if error is None or _only_values(error):
                bound = less
        return bound
    return None


def _only_values(error: CompilerError) -> bool:
    return isinstance(error, OnnxImportError) and all(unsupported.waits for unsupported in error.unsupported)


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.=…/-]*", text) else f"'{text}'"
