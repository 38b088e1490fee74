"""Build the model that a command line names as `package.module:factory`."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kernels_hub.errors import KernelsHubError

if TYPE_CHECKING:
    from torch import nn


_SHOWN = 8


class FactoryError(KernelsHubError, RuntimeError):
    """Code of the user's that raised while it built the model; the cause is chained."""


def build_model(text: str) -> nn.Module:
    """What `call_factory` gives, which is to be an nn.Module. Raises typer.BadParameter for anything else."""
    from torch import nn

    model = call_factory(text)
    if not isinstance(model, nn.Module):
        raise _refusal(f"{text} gives no torch.nn.Module but a {type(model).__name__}")
    return model


def call_factory(text: str) -> Any:
    """Import the module and call the factory; an nn.Module under that name is taken as it is.

    The current folder comes first on `sys.path`. What the code prints goes to stderr: stdout
    belongs to the command.

    Raises typer.BadParameter where the text names nothing, and FactoryError where the code raises.
    """
    from torch import nn

    module_name, colon, attribute = text.partition(":")
    if not (colon and module_name and attribute):
        raise _refusal(f"expected package.module:factory, got {text!r}")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    with contextlib.redirect_stdout(sys.stderr):
        found = _attribute(_module(module_name), module_name, attribute)
        try:
            return found if isinstance(found, nn.Module) or not callable(found) else found()
        except Exception as error:
            raise FactoryError(f"{text}() raised {type(error).__name__}: {error}") from error


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise _refusal(
                f"no module {missing!r} in {Path.cwd()} or among the installed packages"
            ) from error
        raise FactoryError(f"module {name!r} raised {type(error).__name__} on import: {error}") from error


def _attribute(module: Any, module_name: str, path: str) -> Any:
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError as error:
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise _refusal(
            f"module {module_name!r} ({getattr(module, '__file__', 'built in')}) has no {path!r}; "
            f"{_nearest(path, known)}"
        ) from error


def _nearest(name: str, known: list[str]) -> str:
    if not known:
        return "it has nothing callable"
    close = difflib.get_close_matches(name, known, n=_SHOWN, cutoff=0.3) or sorted(known)[:_SHOWN]
    return f"the nearest of what it has: {', '.join(close)}"


def _refusal(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="MODULE:FACTORY")
