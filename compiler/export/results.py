"""Trees of results, as the text of a generated table can state them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import keyword
import sys
from typing import Any

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.runtime.parts import Argument, Cache, Record, Tensor


def result_tree(tree: Any) -> Any:
    """A result, with a Tensor for each output, as a layer's table states it: records for instances of classes.

    Raises ImportFailure for what cannot be stated.
    """
    if type(tree) in (tuple, list):
        return type(tree)(result_tree(one) for one in tree)
    if type(tree) is dict:
        return {name: result_tree(one) for name, one in tree.items()}
    if type(tree) is collections.OrderedDict and all(map(_is_name, tree)):
        return Record("collections:OrderedDict", {name: result_tree(one) for name, one in tree.items()})
    if isinstance(tree, (Tensor, Argument, Cache, bool, int, float, str, type(None))):
        return tree
    if (fields := fields_of(tree)) is not None:
        kind = type(tree)
        return Record(
            f"{kind.__module__}:{kind.__qualname__}", {field: result_tree(fields[field]) for field in fields}
        )
    raise ImportFailure(
        f"the module returns a {type(tree).__name__}; a layer returns tensors, literals, tuples, lists, dicts, named "
        "tuples and dataclasses of a module. Compile one of its layers, or return_dict=False where it takes that"
    )


def fields_of(record: object) -> dict[str, Any] | None:
    """What makes a named tuple or a dataclass, as the outputs of transformers are, anew; None for what it does not."""
    kind = type(record)
    if dataclasses.is_dataclass(record):
        names = [field.name for field in dataclasses.fields(record) if field.init]
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


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key)
