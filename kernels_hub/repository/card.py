"""The card of a release: README.md as a Hub shows it, written from the interface and the benchmark.

What only the author knows comes from the repository's own README.md, which becomes the card's
introduction; everything that could go stale in it is generated. Equal input gives equal text.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from kernels_hub.errors import MetadataError
from kernels_hub.escaping import (
    Identifier,
    MarkdownText,
    code_block,
    code_span,
    markdown_table,
    one_line,
    python_string,
    yaml_text,
)
from kernels_hub.repository.interface import CallableInterface, Interface

CARD_FILE = "README.md"
BENCHMARKS = "benchmark*.json"
"""Files beside kernel.toml with the figures of one machine each, as `benchmarks/harness.py` writes them."""

_FENCE = "---"
_HUB_LICENSES = {
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd", "bsd-2-clause", "bsd-3-clause",
    "bsd-3-clause-clear", "bsl-1.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0", "ecl-2.0", "epl-1.0", "epl-2.0", "eupl-1.1", "gpl", "gpl-2.0", "gpl-3.0", "isc",
    "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "mit", "mpl-2.0", "ms-pl", "ncsa", "ofl-1.1", "osl-3.0",
    "postgresql", "unlicense", "wtfpl", "zlib",
}  # fmt: skip
"""Of the licences that huggingface.co lists, those for software."""
_ORIGINAL = "eager"
_COMPILED = re.compile(r"(Written by `kernels-hub compile`), release [^\s,]+?(?=\.(?:\s|$))", re.ASCII)
"""What earlier releases wrote into an introduction: the release of kernel.toml, not the one that is published."""

_SCAFFOLD = re.compile(
    r"^To make it your own: write the formula into .*?--dry-run$\n?", re.MULTILINE | re.DOTALL
)
"""What the README.md of `kernels-hub init` said to the author in earlier releases."""


@dataclass(frozen=True)
class CardBenchmark:
    """Figures of one machine."""

    where: str
    """Device, versions and threads, in words."""
    cases: Mapping[str, Mapping[str, Any]] = field(hash=False)
    """Case -> {"median_ms": {peer: ms}, "speedup_over_eager": {peer: x}, "errors": {what: number}}."""


@dataclass(frozen=True)
class CardInput:
    """What a card is written from, beside the interface."""

    repo_id: str
    version: str
    repo_type: str = "kernel"
    dtypes: tuple[str, ...] = ()
    readme: str = ""
    """The author's README.md."""
    benchmarks: tuple[CardBenchmark, ...] = ()


def read_benchmarks(folder: Path) -> tuple[CardBenchmark, ...]:
    """Every result file beside kernel.toml. Raises MetadataError for one that is not of the form."""
    return tuple(_read_benchmark(path) for path in sorted(folder.glob(BENCHMARKS)))


def write_card(interface: Interface, given: CardInput) -> str:
    """The text of README.md. Raises MetadataError for a README.md whose front matter is not YAML."""
    front, introduction = _split(given.readme, given.repo_id)
    title, introduction = _title(_SCAFFOLD.sub("", _COMPILED.sub(r"\1", introduction)), given.repo_id)
    backends = sorted({variant.backend or "universal" for variant in interface.variants.values()})
    matter: dict[str, Any] = {
        "library_name": "kernels",
        **_license(interface.license),
        "tags": ["kernel", "kernels-hub", *backends],
    }
    if isinstance(front.get("tags"), list):
        matter["tags"] = list(dict.fromkeys([*matter["tags"], *map(str, front["tags"])]))
    matter |= {str(key): value for key, value in front.items() if key not in matter}
    sections = [
        f"# {_cell(title)}",
        _cell(interface.summary or ""),
        introduction,
        _facts(interface, given),
        _usage(interface, given),
        _layers(interface),
        _functions(interface),
        _variants(interface),
        *(_speed(benchmark) for benchmark in given.benchmarks),
        *(_errors(benchmark) for benchmark in given.benchmarks),
        f"## Licence\n\n{_cell(interface.license or 'Not stated.')}",
    ]
    head = "\n".join(f"{_key(key)}: {yaml_text(value)}" for key, value in matter.items())
    return f"{_FENCE}\n{head}\n{_FENCE}\n\n" + "\n\n".join(filter(None, sections)) + "\n"


# -- sections ---------------------------------------------------------------------------------------


def _facts(interface: Interface, given: CardInput) -> str:
    facts = [f"Release {_cell(given.version)} of the kernel {code_span(interface.name)}."]
    if given.dtypes:
        facts.append(f"dtypes: {_cell(', '.join(given.dtypes))}.")
    needs = sorted({name for variant in interface.variants.values() for name in variant.python_depends})
    kernels = sorted({name for variant in interface.variants.values() for name in variant.kernel_depends})
    if needs:
        facts.append(f"Python packages that some variants need: {_cell(', '.join(needs))}.")
    if kernels:
        facts.append(f"Kernels that it uses: {_cell(', '.join(kernels))}.")
    return "  \n".join(facts)


def _usage(interface: Interface, given: CardInput) -> str:
    version = Version(given.version)
    upper = f"0.{version.minor + 1}" if version.major == 0 else str(version.major + 1)
    pin = f">={given.version},<{upper}"
    kind = "" if given.repo_type == "kernel" else f", repo_type={python_string(given.repo_type)}"
    parts, repo_id = ["## Use"], python_string(given.repo_id)
    if interface.layers:
        layer = next(iter(interface.layers))
        name = python_string(layer)
        device = next(iter(interface.variants.values())).backend or "cpu"
        parts.append(
            code_block(
                "from kernels_hub import LayerRepository, Mode, kernelize, use_kernel_mapping\n\n"
                f"{_identifier(layer)} = LayerRepository({repo_id}, layer_name={name}, version={python_string(pin)})\n"
                f"with use_kernel_mapping({{{name}: {{{python_string(device)}: {_identifier(layer)}}}}}):\n"
                "    kernelize(model, mode=Mode.INFERENCE)",
                "python",
            )
        )
    call = f"get_kernel({repo_id}, version={version.major})"
    parts.append(
        "Without layers, with this library"
        + (" or Hugging Face's `kernels`" if not kind else "")
        + f", for the branch v{version.major}:\n\n"
        + code_block(
            f"from {'kernels_hub' if kind else 'kernels'} import get_kernel\n\nkernel = {call}", "python"
        )
    )
    return "\n\n".join(parts)


def _layers(interface: Interface) -> str:
    if not interface.layers:
        return ""
    flags = sorted({flag for layer in interface.layers.values() for flag in layer.flags})
    rows = [
        (
            code_span(name),
            code_span(f"forward({layer.signature})"),
            _devices(interface, name),
            *(_flag(layer, flag) for flag in flags),
            _cell(layer.summary),
        )
        for name, layer in interface.layers.items()
    ]
    return "## Layers\n\n" + markdown_table(
        ("layer", "signature", "devices", *flags, "what it computes"), rows
    )


def _functions(interface: Interface) -> str:
    rows = [
        (code_span(f"{name}({f.signature})"), _cell(f.summary)) for name, f in interface.functions.items()
    ]
    return "## Functions\n\n" + markdown_table(("function", "what it computes"), rows) if rows else ""


def _variants(interface: Interface) -> str:
    rows = [
        (
            code_span(name),
            variant.backend or "universal",
            ", ".join(variant.archs) or "any",
            ", ".join(variant.python_depends) or "-",
            str(len(variant.files)),
            f"{variant.nbytes / 1024:.1f} KiB",
        )
        for name, variant in interface.variants.items()
    ]
    head = ("variant", "backend", "architectures", "needs", "files", "size")
    return "## Variants\n\n" + markdown_table(head, rows)


def _speed(benchmark: CardBenchmark) -> str:
    timed = {case: figures for case, figures in benchmark.cases.items() if figures.get("median_ms")}
    peers = list(dict.fromkeys(peer for figures in timed.values() for peer in figures["median_ms"]))
    if not timed:
        return ""
    others = [peer for peer in peers if peer != _ORIGINAL]
    rows = [
        (
            _cell(case),
            *(_number(figures["median_ms"].get(peer)) for peer in peers),
            *(_number(figures.get("speedup_over_eager", {}).get(peer)) for peer in others),
        )
        for case, figures in timed.items()
    ]
    head = ("case", *(f"{peer}, ms" for peer in peers), *(f"{peer}: times faster" for peer in others))
    return f"## Speed\n\nMedians on {_cell(benchmark.where)}.\n\n" + markdown_table(head, rows)


def _errors(benchmark: CardBenchmark) -> str:
    checked = {case: figures["errors"] for case, figures in benchmark.cases.items() if figures.get("errors")}
    columns = list(dict.fromkeys(name for figures in checked.values() for name in figures))
    if not checked:
        return ""
    rows = [
        (_cell(case), *(_number(figures.get(name)) for name in columns)) for case, figures in checked.items()
    ]
    head = ("case", *(name.replace("_", " ") for name in columns))
    return f"## Errors\n\nAgainst the original, on {_cell(benchmark.where)}.\n\n" + markdown_table(head, rows)


# -- parts ------------------------------------------------------------------------------------------


def _license(spdx: str | None) -> dict[str, str]:
    """As Hugging Face's cards spell it: a name of theirs, or "other" with the name beside it."""
    name = (spdx or "").lower().removesuffix("-only").removesuffix("-or-later")
    if name in _HUB_LICENSES:
        return {"license": name}
    return {"license": "other"} | ({"license_name": spdx} if spdx else {})


def _devices(interface: Interface, layer: str) -> str:
    devices = [v.backend or "universal" for v in interface.variants.values() if layer in v.layers]
    return ", ".join(sorted(set(devices)))


def _flag(layer: CallableInterface, flag: str) -> str:
    value = layer.flags.get(flag)
    return {True: "yes", False: "no", None: "-"}.get(value, code_span(str(value)))  # type: ignore[arg-type]


def _identifier(name: str) -> str:
    identifier = Identifier(name).lower()
    return identifier if identifier.isidentifier() and not keyword.iskeyword(identifier) else f"_{identifier}"


def _key(name: str) -> str:
    """A key of YAML."""
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) else yaml_text(name)


def _cell(text: str) -> MarkdownText:
    return MarkdownText(one_line(text))


def _number(value: object) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "-" if value is None else _cell(str(value))
    return f"{value:.4g}"


# -- input ------------------------------------------------------------------------------------------


def _split(readme: str, where: str) -> tuple[dict[str, Any], str]:
    """The front matter and the rest."""
    lines = readme.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return {}, readme.strip()
    try:
        end = next(i for i, line in enumerate(lines[1:], start=1) if line.strip() == _FENCE)
    except StopIteration:
        raise MetadataError(f"{CARD_FILE} of {where}: its front matter is not closed by ---") from None
    import yaml  # type: ignore[import-untyped]

    try:
        front = yaml.safe_load("\n".join(lines[1:end])) or {}
    except yaml.YAMLError as error:
        raise MetadataError(f"{CARD_FILE} of {where}: its front matter is not YAML: {error}") from error
    if not isinstance(front, dict):
        raise MetadataError(f"{CARD_FILE} of {where}: its front matter is no mapping of keys to values")
    return front, "\n".join(lines[end + 1 :]).strip()


def _title(introduction: str, repo_id: str) -> tuple[str, str]:
    first, _, rest = introduction.partition("\n")
    if first.startswith("# "):
        return first[2:].strip(), rest.strip()
    return repo_id.rpartition("/")[2], introduction


def _read_benchmark(path: Path) -> CardBenchmark:
    try:
        document = json.loads(path.read_bytes())
        machine = document.get("machine", {})
        cases = document["cases"]
        if not all(isinstance(case, dict) for case in cases.values()):
            raise TypeError("a case is no object")
        versions = machine.get("versions", {})
        known = [str(machine[key]) for key in ("device", "cpu") if machine.get(key) not in (None, "")]
        known += [f"{package} {versions[package]}" for package in ("torch", "triton") if package in versions]
        if document.get("threads"):
            known.append(f"{document['threads']} threads")
        return CardBenchmark(", ".join(known) or "a machine that it does not name", cases)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataError(
            f'{path} is not the result of a benchmark, {{"machine": …, "cases": {{case: …}}}}: '
            f"{type(error).__name__}: {error}"
        ) from error
