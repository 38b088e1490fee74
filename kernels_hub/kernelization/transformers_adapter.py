"""Adapter for Hugging Face transformers, whose own switch for kernels calls `kernelize`.

`install` replaces four names of transformers and nothing else; no module is faked, and no package `kernels` is needed:

    PreTrainedModel.set_use_kernels              calls `kernelize`, under the mapping that the KernelConfig asks for
    hub_kernels.register_kernel_replacements_and_fusions
                                                 leaves what a KernelConfig names to `kernelize`
    hub_kernels.use_kernel_forward_from_hub, use_kernelized_func
                                                 tag, where transformers found no `kernels` and would do nothing

A KernelConfig holds what it may hold in transformers, and besides, as the whole or for a layer: the name of a mapping
("compiled"), references of kernels_hub, "bundled/<name>:<layer>", and the device "cpu". What it names takes precedence
over the mapping that is active, unless `inherit_mapping` is False or it is local.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import Flag
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import MappingError
from kernels_hub.hub.references import (
    BundledLayerRepository,
    LayerRepository,
    LocalLayerRepository,
    Reference,
)
from kernels_hub.kernelization.apply import explain, kernelize, restore
from kernels_hub.kernelization.mapping import use_kernel_mapping
from kernels_hub.kernelization.mapping_file import load_kernel_mapping
from kernels_hub.kernelization.mode import Mode
from kernels_hub.kernelization.tag import use_kernel_forward_from_hub, use_kernelized_func

if TYPE_CHECKING:
    from torch import nn

Decorator = Callable[[Any], Any]

_TAGS = "transformers"
"""The mapping that says which classes a layer's name means, and maps nothing."""

_REPLACED: list[tuple[object, str, object]] = []
"""Object, name, and what stood there, in the order in which they were replaced."""


def install() -> None:
    """Have `use_kernels=True` call `kernelize`. Done again, it changes nothing.

    Raises ImportError where there are no transformers, or ones without `use_kernels` (before 5.0).
    """
    if _REPLACED:
        return
    import transformers.integrations
    from transformers import PreTrainedModel
    from transformers.integrations import hub_kernels
    from transformers.utils.import_utils import is_kernels_available

    if not hasattr(PreTrainedModel, "set_use_kernels"):
        raise ImportError(
            f"transformers {transformers.__version__} has no PreTrainedModel.set_use_kernels: kernels_hub.transformers "
            "is for 5.22 and newer"
        )
    _replace(PreTrainedModel, "set_use_kernels", _set_use_kernels)
    replacements = getattr(hub_kernels, "register_kernel_replacements_and_fusions", None)
    if replacements is not None:
        _replace(
            hub_kernels,
            "register_kernel_replacements_and_fusions",
            functools.wraps(replacements)(functools.partial(_leave_to_kernelize, replacements)),
        )
    if not is_kernels_available():
        for module in (hub_kernels, transformers.integrations):
            _replace(module, "use_kernel_forward_from_hub", use_kernel_forward_from_hub)
            _replace(module, "use_kernelized_func", _use_kernelized_func)


def uninstall() -> None:
    """Put back what `install` replaced. Models keep their kernels; `restore` takes those."""
    while _REPLACED:
        owner, name, original = _REPLACED.pop()
        setattr(owner, name, original)


def _replace(owner: type | ModuleType, name: str, value: object) -> None:
    _REPLACED.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _set_use_kernels(
    self: nn.Module, use_kernels: bool, kernel_config: object = None, mode: object = None
) -> None:
    """As `PreTrainedModel.set_use_kernels`, by `kernels_hub.kernelize`; False restores the original forwards.

    mode: of kernels_hub or of `kernels`; by default, that of `self.training`. Raises MappingError (a ValueError) for a
    KernelConfig that makes no sense or names what the model lacks; the model is as it was then.
    """
    model: Any = self
    if not use_kernels:
        if getattr(model, "_use_kernels", False):
            restore(model)
        model._use_kernels = False
        return
    ours = _mode(mode, model)
    config = getattr(model, "kernel_config", None) if kernel_config is None else kernel_config
    with ExitStack() as stack:
        if config is not None:
            _enter(config, model, ours, stack)
        kernelize(model, mode=ours)
    if kernel_config is not None:
        model.kernel_config = kernel_config
    model._use_kernels = True


def _enter(config: object, model: nn.Module, mode: Mode, stack: ExitStack) -> None:
    """Put the mapping of a KernelConfig in force."""
    asked = getattr(config, "kernel_mapping", None)
    inherit = bool(getattr(config, "inherit_mapping", True))
    local = bool(getattr(config, "use_local_kernel", False))
    if asked is None:
        raise MappingError(f"kernel_config is a transformers.KernelConfig, got {config!r}")
    if isinstance(asked, str):
        asked = [asked]
    names, layers = _divided(asked)
    for name in names:
        stack.enter_context(use_kernel_mapping(load_kernel_mapping(name), inherit_mapping=inherit))
    if layers:
        keeps = (inherit and not local) or bool(names)
        stack.enter_context(use_kernel_mapping(load_kernel_mapping(_TAGS), inherit_mapping=keeps))
        _check_names(layers, model, mode)
        mapping = {
            layer: dict(_references(layer, given, model, local=local)) for layer, given in layers.items()
        }
        stack.enter_context(use_kernel_mapping(mapping, inherit_mapping=True))


def _divided(asked: object) -> tuple[list[str], dict[str, object]]:
    """Names of mappings, and layers with what is asked for each."""
    if isinstance(asked, Mapping):
        whole = [one for one in asked.values() if isinstance(one, str) and _is_name(one)]
        return whole, {
            layer: one for layer, one in asked.items() if not (isinstance(one, str) and _is_name(one))
        }
    if isinstance(asked, Sequence) and all(isinstance(one, str) for one in asked):
        return list(asked), {}
    raise MappingError(
        f"kernel_mapping of a KernelConfig is a dict of layer names, or the name of a mapping, got {asked!r}"
    )


def _is_name(text: str) -> bool:
    return ":" not in text and "/" not in text


def _check_names(layers: Mapping[str, object], model: nn.Module, mode: Mode) -> None:
    """Raise MappingError for a layer that the model lacks."""
    if fused := [layer for layer in layers if not isinstance(layer, str)]:
        raise MappingError(
            f"KernelConfig asks for the fusion {fused[0]!r}: kernels_hub has no fused layers of that form; name one "
            "layer"
        )
    known = {row.layer_name for row in explain(model, mode=mode).rows if row.layer_name}
    known |= {
        name
        for module in model.modules()
        if isinstance(name := getattr(module, "kernel_layer_name", None), str)
    }
    if unknown := sorted(layer for layer in layers if layer not in known):
        raise MappingError(
            f"KernelConfig names the layer {unknown[0]!r}, which {type(model).__name__} lacks; it has "
            f"{', '.join(sorted(known)) or 'no tagged layers'}"
        )


def _references(layer: str, given: object, model: nn.Module, *, local: bool) -> Iterator[tuple[str, object]]:
    """Device and reference, or what modes it is for, of what a KernelConfig gives for a layer."""
    if not isinstance(given, Mapping):
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        yield device, _reference(layer, given, local=local)
        return
    for device, reference in given.items():
        if isinstance(reference, Mapping):
            yield (
                device,
                {
                    _mode(key, model): _reference(layer, value, local=local)
                    for key, value in reference.items()
                },
            )
        else:
            yield device, _reference(layer, reference, local=local)


def _reference(layer: str, asked: object, *, local: bool) -> Reference:
    if isinstance(asked, Reference):
        return asked
    reference: Any = asked
    where = f"KernelConfig: the kernel of {layer!r}"
    if hasattr(reference, "_repo_id") and hasattr(reference, "layer_name"):  # of `kernels`
        return LayerRepository(
            reference._repo_id, layer_name=reference.layer_name,
            version=reference._version, revision=reference._revision,
            trust_remote_code=getattr(reference, "_trust_remote_code", False),
        )  # fmt: skip
    if hasattr(reference, "_repo_path") and hasattr(reference, "layer_name"):
        return LocalLayerRepository(reference._repo_path, layer_name=reference.layer_name)
    text, options = (
        reference if isinstance(reference, tuple) and len(reference) == 2 else (reference, {"version": 1})
    )
    if not isinstance(text, str) or not isinstance(options, Mapping):
        raise MappingError(f"{where} is 'org/repo:layer', or that and a dict of options, got {reference!r}")
    repository, _, name = text.rpartition(":")
    if not repository or not name:
        raise MappingError(f"{where} is 'org/repo:layer' or '/path:layer', got {text!r}")
    if unknown := sorted(set(options) - {"version", "revision", "trust_remote_code"}):
        raise MappingError(
            f"{where} has no option {unknown[0]!r}; there are version, revision, trust_remote_code"
        )
    if local or Path(repository).is_absolute():
        return LocalLayerRepository(Path(repository), layer_name=name)
    if repository.startswith("bundled/"):
        return BundledLayerRepository(repository.removeprefix("bundled/"), layer_name=name)
    return LayerRepository(repository, layer_name=name, **options)


def _mode(mode: object, model: nn.Module) -> Mode:
    """The mode of kernels_hub for one of `kernels`, or for a model."""
    if mode is None:
        return Mode.TRAINING if model.training else Mode.INFERENCE
    if isinstance(mode, Mode):
        return mode
    if not isinstance(mode, Flag):
        raise TypeError(f"mode is a Mode of kernels_hub or of kernels, got {mode!r}")
    names = [str(member.name) for member in mode]
    parsed = Mode[names[0]]
    for name in names[1:]:
        parsed |= Mode[name]
    return parsed


def _leave_to_kernelize(
    original: Callable[..., None], cls: type, config: object, kernel_config: object
) -> None:
    """What transformers does with a KernelConfig before it makes the model: only fusions are of its own."""
    asked = getattr(kernel_config, "kernel_mapping", None)
    if isinstance(asked, Mapping) and any(isinstance(one, tuple) for one in asked):
        from transformers.utils.import_utils import is_kernels_available

        if is_kernels_available():
            original(cls, config, kernel_config)


def _use_kernelized_func(functions: object) -> Decorator:
    """Tells which functions a class calls; what has no tag (it was made before this was installed) is left alone."""
    listed: Sequence[Any] = functions if isinstance(functions, (list, tuple)) else [functions]
    tagged = [function for function in listed if getattr(function, "kernel_layer_name", None) is not None]
    return use_kernelized_func(*tagged) if tagged else lambda cls: cls
