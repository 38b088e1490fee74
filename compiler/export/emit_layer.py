"""`emit_layer`: a module, one layer of a model, or a model's file becomes a layer repository in source form.

    emit_layer((module, (x,)), layer_name="LlamaMLP", out=Path("llama-mlp"), dynamic_shapes={"x": {0: Dim("batch")}})
    emit_layer("encoder.onnx", layer_name="Encoder", out=Path("encoder"))
    emit_layer("encoder.pt2", layer_name="Encoder", out=Path("encoder"))
    emit_layer(source, layer_name="MLP", out="mlp", dtypes=("float32", "bfloat16"), aot=("sm_90",), prebuilt=True)

What is written runs under this library and under Hugging Face's `kernels` client with torch alone: `kernels-hub build`
and `publish` take it like any other layer repository. Its forward has the signature of the module's, reads the weights
of the module that it replaces whenever they change, and hands every call that it was not compiled for to the
original forward.
"""

from __future__ import annotations

import json
import keyword
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernels_hub import cxx_compiler
from kernels_hub.compiler.codegen.cpp.translation_unit import CppCode
from kernels_hub.compiler.errors import BuildError, CompilerError, EngineError
from kernels_hub.compiler.export import package
from kernels_hub.compiler.export.arrays import write_tensors
from kernels_hub.compiler.export.bytecode_files import BytecodeFile, bytecode_of, write_bytecode
from kernels_hub.compiler.export.caches import caches_as_trees
from kernels_hub.compiler.export.card import GRAPH, Card, write_card
from kernels_hub.compiler.export.check import check_emitted
from kernels_hub.compiler.export.checked import Checked
from kernels_hub.compiler.export.exported_source import from_exported
from kernels_hub.compiler.export.gpu_binaries import Compiled, check_architectures, compile_ahead, sizes_of
from kernels_hub.compiler.export.gradient import Trained, asked_inputs, with_training, write_training
from kernels_hub.compiler.export.gradient_check import CheckedGradients, check_gradients
from kernels_hub.compiler.export.interpreted import Interpreted, check_interpreted
from kernels_hub.compiler.export.native_binaries import SOURCES, Prebuilt, variant_name, write_prebuilt
from kernels_hub.compiler.export.programs import Programs, compile_programs, dtype_name, examples_of
from kernels_hub.compiler.export.provenance import provenance_of_layer
from kernels_hub.compiler.export.source import (
    Example,
    Source,
    evaluating,
    from_module,
    from_onnx,
    layer_of,
)
from kernels_hub.compiler.export.table import Parts, write_table
from kernels_hub.compiler.export.triton_program import knob_table
from kernels_hub.compiler.export.tuned import FILE as TUNED
from kernels_hub.compiler.export.tuned import Tuned, with_tuned, write_tuned
from kernels_hub.compiler.importers.torch_archive import is_torch_archive
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime.bytecode import no_interpreter
from kernels_hub.compiler.runtime.knobs import FILE as KNOBS
from kernels_hub.compiler.viewing.view import to_svg
from kernels_hub.escaping import CommentText
from kernels_hub.files import set_aside
from kernels_hub.repository.build import KERNEL_NAME, NAME_RULE
from kernels_hub.repository.provenance import PROVENANCE_FILE

if TYPE_CHECKING:
    from kernels_hub.compiler.importers.onnx_inputs import Shapes


@dataclass(frozen=True)
class Emitted:
    """What was written, and how it compares. `files`: relative to `path`.

    programs: of each dtype. graph, program: of the first, after rewriting. ahead: GPU binaries. prebuilt: native ones.
    gradients: how those compare, or why there are none. interpreted: how the GPU programs compare. bytecode: of each
    program of C++.
    """

    path: Path
    name: str
    layer_name: str
    graph: Graph
    program: CppCode
    checked: Checked
    files: tuple[str, ...]
    programs: tuple[Programs, ...] = ()
    ahead: tuple[Compiled, ...] = ()
    prebuilt: tuple[Prebuilt, ...] = ()
    gradients: CheckedGradients | None = None
    interpreted: tuple[Interpreted, ...] = ()
    bytecode: tuple[BytecodeFile, ...] = ()


def _untrained(programs: Sequence[Programs]) -> str:
    """Why no gradients are computed of programs, whatever is in them; "" where nothing keeps it from that."""
    if any(program.found.takes_caches for program in programs):
        return "a cache is among the arguments"
    asserts = any(program.found.assertions is not None for program in programs)
    return "its forward asserts something of data" if asserts else ""


@caches_as_trees()
def emit_layer(
    source: object,
    *,
    layer_name: str,
    out: str | os.PathLike[str],
    args: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    submodule: str | None = None,
    dims: Mapping[str, object] | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, object] | None = None,
    dtypes: Sequence[str] | None = None,
    triton: bool = True,
    training: bool = True,
    aot: Sequence[str] = (),
    prebuilt: bool = False,
    bytecode: bool = True,
    interpret: bool = False,
    tuned: Sequence[Tuned] = (),
    name: str | None = None,
    version: str = "0.1.0",
    benchmark: bool = True,
    command: str | None = None,
) -> Emitted:
    """Compile a layer and write it as a repository in source form: C++ for the CPU, Triton for GPUs.

    source: an nn.Module with `args`, (module, args) or (module, args, kwargs); the path of an ONNX file; a
    program that torch.export made before, or the path of its file (.pt2), read as data; or a module that was traced
    before (`source.from_module`).
    out: a folder that is new, empty, or was emitted before. dynamic_shapes: as torch.export takes them. submodule:
    compile this layer of the module, with the arguments that it gets when the module runs. dims, shapes, values: of an
    ONNX file's inputs, as `import_onnx` takes them. dtypes: "float32", "bfloat16" …: a program for each, chosen by the
    weights' dtype; by default the one that the module has. triton: write Triton kernels where they take all of the
    graph. training: where the graph can be differentiated, write programs that compute gradients, too, for the inputs
    that require one in the
    example (for all floats, where none does). aot: architectures
    ("sm_80", "sm_90", "sm_100", "gfx942") for which these are compiled now, without a GPU. prebuilt: ship the C++
    compiled for each instruction set level of this kind of CPU, too. bytecode: ship the kernels as bytecode, too, which
    runs where there is no C++ compiler. interpret: run the GPU programs in Triton's
    interpreter, too, where that takes seconds, and compare them with the oracle. tuned: what a search found, to be
    made instead of the usual (`emitting.tuned`). name: of the kernel, by default made of layer_name. benchmark: time
    it against the original. command: how to make it again, for the card.

    >>> twice = nn.Sequential(nn.Linear(4, 8), nn.GELU()).eval()
    >>> emitted = emit_layer(twice, args=[torch.ones(2, 4)], layer_name="Twice", out="twice", benchmark=False)
    >>> print(*sorted(path.name for path in emitted.path.iterdir()))
    README.md call cpu graph.svg kernel.toml package provenance.json triton

    Every case of the card's table is checked against the module and the oracle before this returns. Raises
    ImportFailure for what cannot be imported and EngineError for ops that no kernel computes, each with all of
    them; BuildError without a C++ compiler and without the interpreter of bytecode; EngineError where results differ,
    and without a compiler for what bytecode does not express. `out` is as it was, then.
    """
    folder = Path(out)
    if not (layer_name.isascii() and layer_name.isidentifier()) or keyword.iskeyword(layer_name):
        raise CompilerError(
            f"{layer_name!r} cannot be a layer's name: it is to be the name of a class, in ASCII"
        )
    _check_out(folder)
    kernel = name or package.kernel_name(layer_name)
    if KERNEL_NAME.fullmatch(kernel) is None:
        raise CompilerError(
            f"{kernel!r} cannot be a kernel's name, give another (name=, or --name): {NAME_RULE}"
        )
    _check_runs_here()
    if aot:
        check_architectures(aot)
    sources, original, asked = _sources(
        source, args, kwargs, dynamic_shapes, submodule, dims, shapes, values, dtypes, layer_name
    )
    several = len(sources) > 1
    programs = tuple(
        compile_programs(found, layer_name, dtype, dtype if several else "", triton=triton, tuned=tuned)
        for dtype, found in sources.items()
    )
    if aot and not any(program.triton for program in programs):
        raise CompilerError(
            f"there are no Triton kernels to compile for {', '.join(aot)}: {programs[0].without_triton}"
        )
    trained: Trained | str = "it was not asked for"
    if training:
        trained = _untrained(programs) or with_training(programs, asked)
    trained, of_training = _bytecode_of_training(trained, wanted=bytecode)
    programs = programs if isinstance(trained, str) else trained.programs
    of_layer = _bytecode_of_layer(layer_name, programs, wanted=bytecode)
    first = programs[0]
    assert isinstance(first.native.program, CppCode)
    count = len(first.native.program.steps)
    summary = f"{CommentText(original)}, compiled to {count} C++ kernel{'s' if count != 1 else ''}"
    card = Card(kernel, version, layer_name, summary, command, tuple(tuned))
    knobs = with_tuned(knob_table(), tuned)
    with set_aside(folder, _OWNED):
        tables = [] if isinstance(trained, str) else [training.table_file for training in trained.trainings]
        _write(folder, programs, card, knobs, prebuilt=prebuilt, gradients=tables)
        native = [program.native for program in programs]
        if not isinstance(trained, str):
            write_training(folder, trained.trainings)
            native += [
                part for training in trained.trainings for part in (training.forward, training.backward)
            ]
        write_bytecode(folder, of_layer + of_training)
        built = write_prebuilt(folder, native) if prebuilt else ()
        checked = check_emitted(
            folder, layer_name, [program.found for program in programs], built, benchmark=benchmark
        )
        gradients = check_gradients(folder, layer_name, trained, benchmark=benchmark)
        sizes = [case.sizes for case in checked.cases]
        interpreted = check_interpreted(folder, layer_name, programs, sizes) if interpret else ()
        ahead: list[Compiled] = []
        if aot:
            cases = {
                program.triton.program_file: sizes_of(program.graph, sizes)
                for program in programs
                if program.triton is not None
            }
            ahead = compile_ahead(folder, tuple(dict.fromkeys(aot)), cases, knobs)
            _write_knobs(folder, knobs)
        compiled = provenance_of_layer(first.found, _file_of(source), checked, gradients, original)
        for file, text in ((PROVENANCE_FILE, compiled.to_json()), (GRAPH, to_svg(first.graph))):
            (folder / file).write_text(text, encoding="utf-8", newline="\n")
        (folder / "README.md").write_text(
            write_card(card, programs, checked, ahead, built, gradients, interpreted, of_layer),
            encoding="utf-8",
        )
        files = tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
    return Emitted(
        folder,
        kernel,
        layer_name,
        first.graph,
        first.native.program,
        checked,
        files,
        programs,
        tuple(ahead),
        built,
        gradients,
        interpreted,
        of_layer + of_training,
    )


def _builds() -> bool:
    """Whether C++ is built here, so that bytecode is not all that there is to run."""
    return cxx_compiler.find_compiler() is not None


def _check_runs_here() -> None:
    if not _builds() and (reason := no_interpreter()) is not None:
        raise BuildError(
            "no C++ compiler found to check what is emitted with; set KERNELS_HUB_CXX or install g++; without one, "
            f"{reason}"
        )


def _bytecode_of_training(
    trained: Trained | str, *, wanted: bool
) -> tuple[Trained | str, tuple[BytecodeFile, ...]]:
    """What `with_training` gave, or why nothing of it runs here; the bytecode of its programs."""
    if isinstance(trained, str) or (_builds() and not wanted):
        return trained, ()
    files = bytecode_of(part for one in trained.trainings for part in (one.forward, one.backward))
    if not _builds() and (reason := _lacking(files)) is not None:
        return f"there is no C++ compiler, and of their programs {reason}", ()
    return trained, files


def _bytecode_of_layer(name: str, programs: Sequence[Programs], *, wanted: bool) -> tuple[BytecodeFile, ...]:
    """Raises EngineError where a program has none, and nothing else would run it here."""
    if _builds() and not wanted:
        return ()
    files = bytecode_of(program.native for program in programs)
    if not _builds() and (reason := _lacking(files)) is not None:
        raise EngineError(f"layer {name} needs a C++ compiler, which is not here: {reason}")
    return files


def _lacking(files: Sequence[BytecodeFile]) -> str | None:
    """Why one of some programs has no bytecode; None where all have."""
    return next((one.reason for one in files if one.content is None), None)


_OWNED = (
    "package",
    "call",
    "cpu",
    "triton",
    SOURCES,
    "kernel.toml",
    "README.md",
    GRAPH,
    TUNED,
    PROVENANCE_FILE,
    "build",
)
"""What is written into a repository, and what was built of it, which clients would take for the new one."""


def _sources(
    source: Any,
    args: Any,
    kwargs: Any,
    dynamic_shapes: Any,
    submodule: str | None,
    dims: Any,
    shapes: Shapes | None,
    values: Mapping[str, object] | None,
    dtypes: Sequence[str] | None,
    name: str,
) -> tuple[dict[str, Source], str, tuple[str, ...] | None]:
    """The source in each dtype, what it is in words, and which of its inputs require a gradient (None: none does)."""
    if isinstance(source, tuple) and source and isinstance(source[0], nn.Module):
        source, args, kwargs = (*source, *(None, None))[:3] if args is None else (source[0], args, kwargs)
    if isinstance(source, Source) and source.example is not None:
        traced = source.example
        with evaluating(traced.module):
            what = type(traced.module).__qualname__
            return {dtype_name(traced): source}, what, asked_inputs(traced, None)
    if isinstance(source, nn.Module):
        if args is None and kwargs is None:
            raise CompilerError(f"{type(source).__name__} needs example arguments: give (module, args)")
        example = Example(source, tuple(args or ()), dict(kwargs or {}), dynamic_shapes)
        examples = {dtype_name(example): example} if dtypes is None else examples_of(example, dtypes)
        found, what = {}, type(source).__qualname__
        for dtype, one in examples.items():
            with evaluating(one.module):
                layer = one if submodule is None else layer_of(one, submodule)
                found[dtype] = from_module(layer, name)
            if submodule is not None:
                what = f"{type(layer.module).__qualname__} ({submodule} of {type(source).__qualname__})"
        with evaluating(source):
            return found, what, asked_inputs(example, submodule)
    program, file = _program_of(source)
    if program is not None:
        what = "An exported program" if file is None else f"The exported program {file.name}"
        if submodule is not None or dtypes is not None or dims or shapes or values or dynamic_shapes:
            raise CompilerError(
                f"{what[0].lower()}{what[1:]} has the layers, dtypes and sizes that it was exported with; leave out "
                "submodule, dtypes, dims, shapes, values and dynamic_shapes, or export it again with them"
            )
        return {"": from_exported(program, name)}, what, None
    if isinstance(source, (str, os.PathLike)):
        if submodule is not None:
            raise CompilerError(f"{source} is an ONNX file, which has no module {submodule!r}")
        if dtypes is not None:
            raise CompilerError(f"{source} is an ONNX file, which has dtypes of its own; leave out dtypes")
        return (
            {"": from_onnx(Path(source), name, dims, shapes, values)},
            f"The ONNX file {Path(source).name}",
            None,
        )
    raise CompilerError(
        f"a layer is made of a module with arguments, an ONNX file, or an exported program, not of {source!r}"
    )


def _program_of(source: object) -> tuple[torch.export.ExportedProgram | None, Path | None]:
    """A program that torch.export made before, and the file that it was read from."""
    if isinstance(source, torch.export.ExportedProgram):
        return source, None
    path = _file_of(source)
    if path is None or not is_torch_archive(path):
        return None, None
    from kernels_hub.compiler.importers.torch_file import read_program

    return read_program(path), path


def _file_of(source: object) -> Path | None:
    """The file that a layer is made of, None where it is none."""
    return Path(source) if isinstance(source, (str, os.PathLike)) else None


def _check_out(folder: Path) -> None:
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise CompilerError(f"{folder} cannot be made: {parent} is no folder")
    if not folder.exists():
        return
    manifest = folder / "kernel.toml"
    if folder.is_dir() and (not any(folder.iterdir()) or (
        manifest.is_file() and manifest.read_text(encoding="utf-8").startswith(package.MARK)
    )):  # fmt: skip
        return
    raise CompilerError(f"{folder} holds something else than an emitted layer; give a new folder")


def _write(
    folder: Path,
    programs: Sequence[Programs],
    card: Card,
    knobs: Mapping[str, object],
    *,
    prebuilt: bool,
    gradients: Sequence[str],
) -> None:
    """Write everything but the card, what is compiled, and programs of gradients, whose tables are named."""
    sources = [program.native.source for program in programs]
    source, layer = sources[0], card.layer
    standalone = source.example is None
    gpu = [program.triton for program in programs if program.triton is not None]
    labels = {program.dtype: program.native.label for program in programs}
    texts = {
        "kernel.toml": package.manifest(
            card.name,
            card.version,
            layer,
            sources,
            card.summary,
            functions=["load"] if standalone else [],
            gpu=bool(gpu),
            prebuilt={variant_name(): SOURCES} if prebuilt else {},
        ),
        "package/__init__.py": package.init_file(card.summary, standalone=standalone),
        "package/layers.py": package.layers_file(
            layer,
            sources,
            card.summary,
            standalone=standalone,
            has_backward="LAYER.has_backward" if gpu and gradients else str(bool(gradients)),
        ),
        "cpu/program.py": package.program_file(
            "native_layer:NativeLayer", labels, standalone=standalone, gradients=gradients
        ),
        **({"package/model.py": package.model_file(layer, source)} if standalone else {}),
    }
    for one in programs:
        texts |= _texts("cpu", one.native)
    if gpu:
        labels = {program.dtype: program.native.label for program in programs if program.triton is not None}
        kind = "launched_layer:LaunchedLayer"
        texts["triton/program.py"] = package.program_file(kind, labels, standalone=standalone)
    for parts in gpu:
        texts |= _texts("triton", parts)
    for inside, text in texts.items():
        path = folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    for inside, path in package.copied_files(gpu=bool(gpu)).items():
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / inside)
    _write_knobs(folder, knobs)
    write_tuned(folder, card.tuned)
    for where, parts in [("cpu", program.native) for program in programs] + [("triton", one) for one in gpu]:
        if constants := parts.constants():
            path = folder / where / parts.file("constants.safetensors")
            write_tensors(path, {one.name: array for one, array in constants.items()})
    if standalone:
        arrays = {name: source.arrays[name] for name in source.graph.parameters}
        write_tensors(folder / "package" / "weights.safetensors", arrays)


def _texts(folder: str, parts: Parts) -> dict[str, str]:
    """The program and its table."""
    return {
        f"{folder}/{parts.program_file}": parts.program.source,
        f"{folder}/{parts.file('table.py')}": write_table(parts),
    }


def _write_knobs(folder: Path, knobs: Mapping[str, object]) -> None:
    rows = (f"  {json.dumps(arch)}: {json.dumps(row)}" for arch, row in knobs.items())
    (folder / "call" / KNOBS).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8", newline="\n")
