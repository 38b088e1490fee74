"""Writes docs/architecture.md from the sources: the rooms, what each is for, and which imports which.

    make map                                writes the page
    python -m tools.architecture_map        the same

A room is a folder of kernels_hub/ or compiler/, or layers/ or mappings/. Its sentence is the first line of its
`__init__.py`; its imports are read from the sources, those in functions and under TYPE_CHECKING included. The steps
of the two walks name files and functions; a name that is gone is an error.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.import_graph import SourceModule, components, inside, read_modules

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/architecture.md")

Arrows = dict[str, set[str]]
"""Room -> the rooms that it imports."""

FRONT = "compiler"
"""The room of the loose files of compiler/ that use other rooms: `compile()` and what it returns."""

NO_PACKAGE = {
    "compiler/native": "C++ headers and precompiled kernels, for generated code and for exported layers.",
}
"""Sentences of rooms without an `__init__.py`."""


@dataclass(frozen=True)
class WalkStep:
    """One step of a walk through the code: a function in a file, and what it does."""

    path: str
    function: str
    text: str


KERNELIZE = (
    WalkStep("kernels_hub/kernelization/apply.py", "kernelize", "plans everything, then changes the model."),
    WalkStep("kernels_hub/kernelization/resolve.py", "ClassResolver", "answers once for each class: steps 3 to 10."),
    WalkStep("kernels_hub/kernelization/tag.py", "find_tag", "reads the layer name that the class is tagged with."),
    WalkStep(
        "kernels_hub/kernelization/mapping.py", "active_mapping",
        "gives the repository that is mapped to this name, device and mode.",
    ),
    WalkStep(
        "kernels_hub/hub/references.py", "Reference",
        "finds the files of the kernel: bundled ones, those of a folder, or (the next three steps) those of a Hub.",
    ),
    WalkStep("kernels_hub/trust/decision.py", "admit", "decides whether code of this repository may run."),
    WalkStep("kernels_hub/repository/variants.py", "rank", "picks the build variant that suits this machine."),
    WalkStep("kernels_hub/hub/client.py", "fetch", "downloads what is not cached, and checks digests and signatures."),
    WalkStep("kernels_hub/repository/load.py", "import_kernel", "imports the package, once for each content."),
    WalkStep(
        "kernels_hub/kernelization/validate.py", "check_signature",
        "compares the signature of the kernel's forward with the one that it replaces.",
    ),
    WalkStep(
        "kernels_hub/kernelization/gain_gate.py", "GainGate",
        "keeps the original where the mapping asks for measured gains and there is none.",
    ),
    WalkStep(
        "kernels_hub/kernelization/chain_plan.py", "plan_chains",
        "finds modules that run as one: a convolution, its norm and its activation.",
    ),
    WalkStep(
        "kernels_hub/kernelization/verify.py", "verify_steps",
        "compares results on the inputs that the layer gets (with `verify=`).",
    ),
    WalkStep("kernels_hub/kernelization/bind.py", "KernelForward", "becomes the layer's `forward`."),
    WalkStep("kernels_hub/kernelization/report.py", "report", "says what was done, and why not where nothing was."),
)  # fmt: skip

COMPILE = (
    WalkStep("compiler/pipeline.py", "compile", "takes a graph, an ONNX file or a module."),
    WalkStep("compiler/importers/torch_export.py", "import_torch_program", "makes a `Graph` of a module."),
    WalkStep("compiler/importers/onnx.py", "import_onnx", "makes one of an ONNX file."),
    WalkStep("compiler/rewrite/pipeline.py", "rewrite", "simplifies the graph and recognizes composites."),
    WalkStep(
        "compiler/plan/selection.py", "choose", "asks the engines what they take, and builds the best-ranked plan."
    ),
    WalkStep("compiler/plan/partition.py", "partition", "cuts the graph into segments, each for one engine."),
    WalkStep("compiler/engines/cpp.py", "CppEngine", "compiles a segment: steps 8 to 10."),
    WalkStep("compiler/schedule/schedule.py", "schedule", "fuses ops into loop nests, and lays out memory."),
    WalkStep("compiler/codegen/cpp/translation_unit.py", "generate", "writes them as C++."),
    WalkStep("compiler/runtime/toolchain.py", "build", "compiles the C++, once on a machine."),
    WalkStep("compiler/executable.py", "Executable", "is what `compile` returns. A tensor enters its `__call__`."),
    WalkStep("compiler/plan/plan.py", "Plan", "converts it, if need be, and finds what is known of its shape."),
    WalkStep("compiler/plan/call.py", "BoundProgram", "runs the segments in order."),
    WalkStep("compiler/runtime/binding.py", "ShapeCache", "has sizes, arena layout and outputs for the shape."),
    WalkStep("compiler/runtime/native_program.py", "NativeProgram", "runs the generated function, by one native call."),
)  # fmt: skip

PAGE_TEXT = """\
<!-- Written by `make map`. Edit tools/architecture_map.py or the docstrings of the packages instead. -->

# Architecture

## Two flows

    tag -> map -> resolve -> fetch -> verify -> load -> validate -> swap -> report
    import -> IR -> rewrite -> (search) -> schedule -> codegen -> plan -> run
                                                          \\-> emit layer repository -> build -> publish

The first makes a model faster: `kernelize` swaps the forwards of its layers for kernels. The second makes kernels:
`compile` runs them at once, and an export writes them as a layer repository, which the first flow can load. Only
`kernels_hub/hub/` and `kernels_hub/server/` touch the network; only `kernels_hub/kernelization/apply.py` plans and
applies the swap.

## Rooms

| room | what it is | imports |
|---|---|---|
{rooms}

{leaves}

## Which room imports which

An arrow points from a room to one that it imports; where another path leads there as well, it is left out. Dotted:
found through an entry point of `pyproject.toml`, not imported.

```mermaid
{graph}
```

{rings}
`tests/house/test_architecture.py` has the rules: which imports are forbidden, and which rings of modules are left.

## One layer through `kernelize`

{kernelize}

## One tensor through `compile`

On the CPU, with the engine "cpp":

{compile}

## A call of `compile()`, and a call of a published layer

{difference}
"""

_LEAVES = (
    "Loose files that import no room are left out above: {}. An import from `kernels_hub/__init__.py` or "
    "`compiler/__init__.py` counts for the room that defines the name."
)
_RING = "These rooms import each other, by different modules: {}."


def architecture_page(root: Path) -> str:
    """The text of docs/architecture.md. Raises ValueError where a room has no sentence, or a step names nothing."""
    modules = [
        module for module in read_modules(root) if inside(module.name, "kernels_hub") or _bundled(module)
    ]
    rooms = list(rooms_of(root))
    arrows = room_arrows(modules, rooms, root)
    dotted = list(_entry_points(modules, rooms, root))
    return PAGE_TEXT.format(
        rooms="\n".join(_row(room, arrows[room], root) for room in rooms),
        leaves=_filled(_LEAVES.format(", ".join(f"`{path}`" for path in _leaves(modules, rooms, root)))),
        graph=_mermaid(arrows, dotted),
        rings=_rings(arrows),
        kernelize=_walk(KERNELIZE, root),
        compile=_walk(COMPILE, root),
        difference=_difference(root),
    )


def room_arrows(modules: Iterable[SourceModule], rooms: Iterable[str], root: Path) -> Arrows:
    """The imports between rooms. Names that a package outside of every room re-exports count where they are defined."""
    by_name = {module.name: module for module in modules}
    arrows: Arrows = {room: set() for room in rooms}
    for module in by_name.values():
        source = _room_of(module, arrows, root)
        if source is None or _is_front_door(module, root):
            continue
        for item in module.imports:
            target = _defined_by(item.target, by_name, root)
            room = _room_of(target, arrows, root) if target is not None else None
            if room is not None and room != source:
                arrows[source].add(room)
    return arrows


def transitive_reduction(arrows: Mapping[str, Iterable[str]]) -> Arrows:
    """Without the arrows that a longer path makes superfluous. Arrows within a ring all stay.

    >>> transitive_reduction({"a": ["b", "c"], "b": ["c"], "c": []})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """
    whole = {room: set(targets) for room, targets in arrows.items()}
    ring = {room: frozenset(ring) for ring in components(whole) for room in ring}
    reachable = {room: _reachable(room, whole) for room in whole}
    return {
        room: {
            target
            for target in targets
            if ring[room] == ring[target]
            or not any(target in reachable[other] for other in targets - ring[room] - ring[target])
        }
        for room, targets in whole.items()
    }


def _reachable(start: str, arrows: Arrows) -> set[str]:
    """The rooms that imports lead to."""
    reached: set[str] = set()
    stack = [start]
    while stack:
        fresh = arrows[stack.pop()] - reached
        reached |= fresh
        stack += fresh
    return reached


def rooms_of(root: Path) -> Iterator[str]:
    """Paths of the rooms, those of the library first."""
    yield from sorted(_folders(root / "kernels_hub", root))
    yield from ("layers", "mappings", FRONT)
    yield from sorted(_folders(root / "compiler", root))


def _folders(folder: Path, root: Path) -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_dir() and any(path.glob("*.py")):
            yield path.relative_to(root).as_posix()


def _bundled(module: SourceModule) -> bool:
    return inside(module.name, "bundled")


def _room_of(module: SourceModule, rooms: Iterable[str], root: Path) -> str | None:
    """The innermost room that a file lies in; None for a loose file that is in none."""
    path = module.path.relative_to(root).as_posix()
    room = max((room for room in rooms if path.startswith(f"{room}/")), key=len, default=None)
    return None if room == FRONT and not _uses_rooms(module) else room


def _uses_rooms(module: SourceModule) -> bool:
    """Whether a file of compiler/ imports another one than `errors`, and what that is told in."""
    own = "kernels_hub.compiler"
    leaves = (f"{own}.errors", f"{own}.shortening")
    return any(
        inside(item.target, own) and not any(inside(item.target, leaf) for leaf in leaves)
        for item in module.imports
    )


def _is_front_door(module: SourceModule, root: Path) -> bool:
    """Whether it is the `__init__.py` of kernels_hub/ or compiler/, which re-exports names of the rooms."""
    return module.path in (root / "kernels_hub/__init__.py", root / "compiler/__init__.py")


def _defined_by(target: str, modules: Mapping[str, SourceModule], root: Path) -> SourceModule | None:
    """The module of an import: of "a.b.f" it is "a.b" where f is a name in it, or the one that b takes f from."""
    if target in modules:
        return modules[target]
    package, _, name = target.rpartition(".")
    module = modules.get(package)
    if module is not None and _is_front_door(module, root):
        origin = next((item.target for item in module.imports if item.target.endswith(f".{name}")), "")
        return modules.get(origin) or modules.get(origin.rpartition(".")[0])
    return module


def _leaves(modules: Iterable[SourceModule], rooms: list[str], root: Path) -> Iterator[str]:
    """Paths of the loose files that are in no room and have nothing to do with any."""
    doors = {"__init__.py", "__main__.py"}
    for module in modules:
        if _room_of(module, rooms, root) is None and module.path.name not in doors:
            yield module.path.relative_to(root).as_posix()


def _entry_points(modules: Iterable[SourceModule], rooms: list[str], root: Path) -> Iterator[tuple[str, str]]:
    """(room that looks an entry point up, room that it leads to), for the groups of pyproject.toml."""
    modules = list(modules)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    by_name = {module.name: module for module in modules}
    for group, entries in project["entry-points"].items():
        targets = {_room_of(by_name[entry.partition(":")[0]], rooms, root) for entry in entries.values()}
        for module in modules:
            if f'"{group}"' in module.path.read_text(encoding="utf-8"):
                source = _room_of(module, rooms, root)
                yield from ((source, target) for target in targets if source and target and source != target)


def _row(room: str, targets: Iterable[str], root: Path) -> str:
    imports = ", ".join(f"`{target}`" for target in sorted(targets)) or "no other room"
    return f"| `{room}/` | {_sentence(room, root)} | {imports} |"


def _sentence(room: str, root: Path) -> str:
    path = root / room / "__init__.py"
    text = NO_PACKAGE.get(room) or _docstring(path).partition("\n")[0]
    if not text.endswith((".", ":")):
        raise ValueError(f"{path}: the first line of its docstring says what {room}/ is, in one sentence")
    return text.removesuffix(":").removesuffix(".").replace("|", "\\|") + "."


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_bytes())) or "" if path.is_file() else ""


def _mermaid(arrows: Arrows, dotted: Iterable[tuple[str, str]]) -> str:
    """A Mermaid flowchart, the library and the compiler each in a frame."""
    lines = ["flowchart TD"]
    for title, start in (("kernels_hub", "kernels_hub/"), ("compiler", "compiler")):
        lines.append(f"  subgraph {title}_folder [{title}]")
        lines += [f'    {_identifier(room)}["{_label(room)}"]' for room in arrows if room.startswith(start)]
        lines.append("  end")
    lines += [f"  {room}" for room in ("layers", "mappings")]
    reduced = transitive_reduction(arrows)
    lines += [
        f"  {_identifier(room)} --> {_identifier(target)}"
        for room in arrows
        for target in sorted(reduced[room])
    ]
    lines += [f"  {_identifier(room)} -.-> {_identifier(target)}" for room, target in sorted(set(dotted))]
    return "\n".join(lines)


def _identifier(room: str) -> str:
    return re.sub(r"\W", "_", room)


def _label(room: str) -> str:
    return "compile()" if room == FRONT else room.rpartition("/")[2]


def _rings(arrows: Arrows) -> str:
    rings = sorted(sorted(ring) for ring in components(arrows) if len(ring) > 1)
    return "".join(_filled(_RING.format(", ".join(f"`{room}`" for room in ring))) + "\n" for ring in rings)


def _filled(text: str) -> str:
    """A paragraph in lines; code is not broken."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _walk(steps: Iterable[WalkStep], root: Path) -> str:
    """A numbered list. Raises ValueError where a file does not define what a step names."""
    lines = []
    for number, step in enumerate(steps, 1):
        path = root / step.path
        tree = ast.parse(path.read_bytes()) if path.is_file() else ast.Module([], [])
        if step.function not in {getattr(node, "name", None) for node in tree.body}:
            raise ValueError(
                f"tools/architecture_map.py: {step.path} has no {step.function}; name where it is now"
            )
        lines.append(f"{number}. `{step.function}` in [`{step.path}`](../{step.path}) {step.text}")
    return "\n".join(lines)


def _difference(root: Path) -> str:
    """The second paragraph of the docstring of compiler/runtime/."""
    paragraphs = _docstring(root / "compiler/runtime/__init__.py").split("\n\n")
    if len(paragraphs) < 2 or "differs" not in paragraphs[1]:
        raise ValueError("compiler/runtime/__init__.py: its second paragraph says how calls differ")
    return paragraphs[1]


if __name__ == "__main__":
    (ROOT / PAGE).write_text(architecture_page(ROOT), encoding="utf-8")
