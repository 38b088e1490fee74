"""The public interface as text, a line for each name, method and command option: `make api` records it in docs/api.txt.

A test compares the file with the code, so that no name, argument or option changes without being seen in a review, and
`python -m tools.api_surface --compare OLD` says what a release may be called: see docs/deprecation.md.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "api.txt"


def surface() -> list[str]:
    """Every line, sorted."""
    import kernels_hub
    from kernels_hub import compiler

    lines: list[str] = []
    for package, names in (("kernels_hub", kernels_hub._PUBLIC), ("kernels_hub.compiler", compiler._PUBLIC)):
        module = importlib.import_module(package)
        for name in names:
            lines += _lines(f"{package}.{name}", getattr(module, name))
    return sorted({*lines, *_options()})


def _lines(path: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        initial = "" if issubclass(value, BaseException | enum.Enum) else _signature(value)
        yield f"class {path}({bases}) {initial}".rstrip()
        for name in sorted(vars(value)):
            if not name.startswith("_"):
                yield from _member(f"{path}.{name}", inspect.getattr_static(value, name))
    elif callable(value):
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path}: {type(value).__name__}"


def _member(path: str, member: object) -> Iterator[str]:
    if isinstance(member, staticmethod | classmethod):
        yield f"{path}{_signature(member.__func__)}"
    elif inspect.isfunction(member):
        yield f"{path}{_signature(member)}"
    else:
        yield path  # a property, a field, a value of an enumeration


def _signature(value: Any) -> str:
    """Names, kinds and defaults of arguments. Types are mypy's, and versions of Python spell them differently."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _options() -> Iterator[str]:
    import typer

    from kernels_hub.cli.app import app

    yield from _of_command(typer.main.get_command(app), "kernels-hub")


def _of_command(command: Any, path: str) -> Iterator[str]:
    if getattr(command, "hidden", False):
        return
    yield path
    for one in command.params:
        if not getattr(one, "hidden", False) and one.name != "help":
            yield f"{path} {'|'.join(one.opts) if one.opts[0].startswith('-') else one.name.upper()}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _of_command(inner, f"{path} {name}")


def needed_bump(before: list[str], after: list[str]) -> str:
    """What a change asks for: a "major" release where a line is gone, "minor" where one came, else "patch"."""
    if set(before) - set(after):
        return "major"
    return "minor" if set(after) - set(before) else "patch"


def main() -> None:
    """Record the interface, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--compare", type=Path, metavar="OLD", help="an api.txt of before; nothing is written"
    )
    options = parser.parse_args()
    lines = surface()
    if options.compare is None:
        RECORDED.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{RECORDED.relative_to(ROOT)}: {len(lines)} lines")
        return
    before = options.compare.read_text(encoding="utf-8").splitlines()
    for sign, changed in (("-", set(before) - set(lines)), ("+", set(lines) - set(before))):
        for line in sorted(changed):
            print(f"{sign} {line}")
    print(f"at least a {needed_bump(before, lines)} release")


if __name__ == "__main__":
    main()
