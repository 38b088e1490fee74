"""How to use a release from this Hub: the lines of Python and of a shell that a card leads with."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kernels_hub.server.facets import devices_of
from kernels_hub.server.repositories import Repository
from kernels_hub.server.web.contents import Facts, Revision, is_release


@dataclass(frozen=True, slots=True)
class Usage:
    """A way to use a release: what it is called, its language and its lines."""

    name: str
    language: str
    text: str


def usage_of(repository: Repository, revision: Revision, facts: Facts, endpoint: str) -> list[Usage]:
    """The ways to use a revision, the usual one first; none where there is nothing to load.

    `endpoint` is this Hub's address as the reader knows it.
    """
    if not facts.variants:
        return []
    pinned = (
        f"version={_quoted(f'=={revision.name[1:]}')}"
        if is_release(revision.name)
        else f"revision={_quoted(revision.name)}"
    )
    name = _quoted(repository.full_name)
    ways: list[Usage] = []
    layers = [layer.name for layer in facts.layers if layer.name.isidentifier()]
    head = f'import os\n\nos.environ["HF_ENDPOINT"] = {_quoted(endpoint)}  # before the import\n'
    if layers:
        devices = list(dict.fromkeys(device for item in facts.variants for device in devices_of(item)))
        device = (
            devices[0] if len(devices) == 1 else "cpu" if "cpu" in devices else next(iter(devices), "cpu")
        )
        reference = f"LayerRepository({name}, layer_name={_quoted(layers[0])}, {pinned})"
        ways.append(
            Usage(
                "kernelize a model",
                "python",
                f"{head}from kernels_hub import LayerRepository, Mode, kernelize, use_kernel_mapping\n\n"
                f"layer = {reference}\n"
                f"with use_kernel_mapping({{{_quoted(layers[0])}: {{{_quoted(device)}: layer}}}}):\n"
                "    model = kernelize(model, mode=Mode.INFERENCE)\n",
            )
        )
    functions = [item.name for item in facts.functions if item.name.isidentifier()]
    if functions or not layers:
        call = f"kernel.{functions[0]}" if functions else "kernel"
        ways.append(
            Usage(
                "call a function",
                "python",
                f"{head}from kernels_hub import get_kernel\n\nkernel = get_kernel({name}, {pinned})\nprint({call})\n",
            )
        )
    if is_release(revision.name):
        specifier = f"{repository.full_name}@=={revision.name[1:]}"
        ways.append(
            Usage(
                "download it",
                "bash",
                f"export HF_ENDPOINT={endpoint}\nkernels-hub download '{specifier}'\n",
            )
        )
    return ways


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
