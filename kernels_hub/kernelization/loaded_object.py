"""Objects named as text, "package.module:qualname", looked up among what is already imported.

Mapping files name classes and functions of libraries that may not be installed, and are not worth
importing to answer a question: where the module is not in `sys.modules`, nothing in the process can
be an instance of its classes.
"""

from __future__ import annotations

import re
import sys
from typing import Any

MISSING: Any = object()
"""What `find_loaded` returns for a name that stands for nothing in this process."""

_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
OBJECT_NAME = re.compile(rf"{_PATH}(?::{_PATH})?", re.ASCII)
"""A dotted path, or a module and a qualified name with ":" between them."""


def find_loaded(name: str) -> Any:
    """The object that `name` stands for, or MISSING; nothing is imported.

    name: "torch.nn:Linear", "torch.nn.functional", or "torch.nn.Linear", where the longest prefix
        that is an imported module is taken for the module.

    >>> import collections
    >>> find_loaded("collections:OrderedDict") is collections.OrderedDict
    True
    """
    module_name, colon, qualname = name.partition(":")
    if colon:
        return _walk(sys.modules.get(module_name, MISSING), qualname)
    rest: list[str] = []
    while module_name:
        if (module := sys.modules.get(module_name)) is not None:
            return _walk(module, ".".join(reversed(rest)))
        module_name, _, last = module_name.rpartition(".")
        rest.append(last)
    return MISSING


def _walk(value: object, path: str) -> Any:
    # Through __dict__, so that a module with a lazy __getattr__ (transformers) imports nothing for us.
    for step in path.split(".") if path else ():
        found = getattr(value, "__dict__", {}).get(step, MISSING)
        if found is MISSING:
            return MISSING
        value = found
    return value
