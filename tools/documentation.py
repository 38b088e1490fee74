"""What the documentation site generates from the code, as hooks of mkdocs: see `mkdocs.yml`.

    reference/*.md   every public name of `kernels_hub` and `kernels_hub.compiler`, every command
    changelog.md     CHANGELOG.md

`mkdocstrings` reads the sources from build/documented/, a tree of links laid out as an installation is. Links from
pages to files of the repository become their paths, as a site has no such files. The picture of the architecture, which
GitHub draws with a script from elsewhere, is left out: the table on its page says the same.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "documented"

PAGES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "reference/kernelize.md": (
        "kernelize and mappings",
        "Tags, mappings, modes and devices; what swaps, undoes, explains and reports.",
        ("kernelization.",),
    ),
    "reference/repositories.md": (
        "Repositories and kernels",
        "Where kernels come from: folders, the library, a Hub, a lock.",
        ("hub.", "repository."),
    ),
    "reference/errors.md": ("Errors", "Every error that is raised on purpose.", ("errors",)),
}
"""Page of `kernels_hub`'s names -> title, introduction, beginnings of the modules that define them."""

_MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")


# -- hooks ------------------------------------------------------------------------------------------


def on_startup(*, command: str, dirty: bool) -> None:  # noqa: ARG001  (mkdocs passes them by name)
    """Lay the sources out as they are installed: mkdocstrings, configured later, leaves out paths that do not exist."""
    make_tree()


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page as a site can show it."""
    return _OUTSIDE.sub(
        _path_alone, _MERMAID.sub("(A picture in the repository's copy of this page.)", markdown)
    )


# -- pages ------------------------------------------------------------------------------------------


def generated_pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    import kernels_hub
    from kernels_hub import compiler

    pages = {}
    for path, (title, introduction, beginnings) in PAGES.items():
        names = {
            name: module for name, module in kernels_hub._PUBLIC.items() if module.startswith(beginnings)
        }
        pages[path] = _names_page(title, introduction, "kernels_hub", names)
    pages["reference/compiler.md"] = _names_page(
        "Compiler",
        "Import what you need by name; `compile` is best called as `compiler.compile`, after `from kernels_hub import "
        "compiler`, as Python has a `compile` of its own.",
        "kernels_hub.compiler",
        compiler._PUBLIC,
    )
    pages["reference/commands.md"] = _commands_page()
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return pages


def _names_page(title: str, introduction: str, package: str, names: Mapping[str, str]) -> str:
    parts = [f"# {title}", introduction]
    for name, module in sorted(names.items(), key=lambda item: item[0].lower()):
        parts.append(
            f"::: {_defined(getattr(importlib.import_module(package), name), f'{package}.{module}.{name}')}"
        )
    return "\n\n".join(parts) + "\n"


def _defined(value: object, named: str) -> str:
    """Where the sources define a public name."""
    if isinstance(value, ModuleType):  # a package that can be called: `rewrite`
        return f"{value.__name__}.pipeline.{named.rpartition('.')[2]}"
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if module and name and module.startswith("kernels_hub") else named


def _commands_page() -> str:
    import typer

    from kernels_hub.cli.app import app

    root = typer.main.get_command(app)
    parts = [
        "# Command line",
        "`kernels-hub COMMAND --help` says the same. Exit status: 0 done, 1 an error, 2 wrong usage.",
    ]
    for path, command in _commands(root, ()):
        parts += _command(path, command)
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield (*path, name), inner
            yield from _commands(inner, (*path, name))


def _command(path: tuple[str, ...], command: Any) -> list[str]:
    context = command.context_class(command, info_name=f"kernels-hub {' '.join(path)}")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"{'#' * (len(path) + 1)} kernels-hub {' '.join(path)}",
        _escaped(command.help or ""),
        f"    kernels-hub {' '.join(path)} {usage}",
    ]
    rows = [record for one in command.params if (record := one.get_help_record(context)) is not None]
    if rows:
        table = ["| | |", "|---|---|"]
        table += [f"| `{names.replace('|', chr(92) + '|')}` | {_cell(text)} |" for names, text in rows]
        parts.append("\n".join(table))
    return [one for one in parts if one]


def _escaped(text: str) -> str:
    plain = text.replace("\b", "").replace("<", "&lt;")
    return re.sub(r"(?<![`\w])([\[*_])", r"\\\1", plain)


def _cell(text: str) -> str:
    return " ".join(_escaped(text).split()).replace("|", "\\|")


def _path_alone(link: re.Match[str]) -> str:
    return link[1] if link[1].startswith("`") else f"{link[1]} (`{link[2].removeprefix('../')}`)"


# -- sources ----------------------------------------------------------------------------------------


def make_tree() -> None:
    """Lay the package out afresh, as it is installed."""
    if TREE.exists():
        shutil.rmtree(TREE)
    package = TREE / "kernels_hub"
    package.mkdir(parents=True)
    for entry in (ROOT / "kernels_hub").iterdir():
        (package / entry.name).symlink_to(entry)
    for name in ("compiler", "mappings", "layers"):
        (package / name).symlink_to(ROOT / name)
