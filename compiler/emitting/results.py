"""What a module returns, as text can state it."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

from kernels_hub.compiler.emitting.runtime.parts import Argument, Cache, Record, Tensor
from kernels_hub.compiler.errors import ImportFailure


def result_tree(tree: Any) -> Any:
    """A result, with a Tensor for each output, as a layer's table states it: records for instances of classes.

    Raises ImportFailure for what cannot be stated.
    """
    if type(tree) in (tuple, list):
        return type(tree)(result_tree(one) for one in tree)
    if type(tree) is dict:
        return {name: result_tree(one) for name, one in tree.items()}
    if isinstance(tree, (Tensor, Argument, Cache, bool, int, float, str, type(None))):
        return tree
    if (fields := _fields(tree)) is not None:
        kind = type(tree)
        return Record(
            f"{kind.__module__}:{kind.__qualname__}", {one: result_tree(fields[one]) for one in fields}
        )
    raise ImportFailure(
        f"the module returns a {type(tree).__name__}; a layer returns tensors, literals, tuples, lists, dicts, named "
        "tuples and dataclasses of a module. Compile one of its layers, or return_dict=False where it takes that"
    )


def _fields(record: Any) -> dict[str, Any] | None:
    """What makes a named tuple or a dataclass, as the outputs of transformers are, anew; None for what it does not."""
    kind = type(record)
    if dataclasses.is_dataclass(record):
        names = [one.name for one in dataclasses.fields(record) if one.init]
    else:
        names = list(getattr(record, "_fields", ()))
    try:
        fields = {name: getattr(record, name) for name in names}
        again = kind(**fields)
        found: Any = functools.reduce(getattr, kind.__qualname__.split("."), sys.modules[kind.__module__])
    except Exception:  # noqa: BLE001 -- the class's own code
        return None
    same = all(getattr(again, name, None) is one for name, one in fields.items())
    return fields if names and same and found is kind and kind.__module__ != "__main__" else None
