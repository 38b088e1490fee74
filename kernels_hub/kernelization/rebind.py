"""Load again what a record refers to, and bind it: how a kernelized module is copied and unpickled.

`copyreg` knows how a bound kernel pickles: as the module, or the function, and the record of the decision.
"""

from __future__ import annotations

import copyreg
import functools
import logging
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import KernelsHubError
from kernels_hub.hub.references import Reference
from kernels_hub.kernelization.bind import (
    Forward,
    KernelForward,
    KernelFunction,
    LoadedLayer,
    bind_class_forward,
    bind_function,
    kernel_function,
    load_layer,
    overlaid_forward,
    weights_protocol,
    without_copies,
)
from kernels_hub.kernelization.chains import Followers, followers_in, with_chains
from kernels_hub.kernelization.compiled_layer import CompiledLayer
from kernels_hub.kernelization.function_places import referred_as
from kernels_hub.kernelization.gain_gate import Sizes, gated_forward
from kernels_hub.kernelization.jit import PendingLayer
from kernels_hub.kernelization.mapping_records import LayerSource
from kernels_hub.kernelization.outcome import Chain, ModuleRecord, SwapDecision, record_of

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

Functions = tuple[tuple[str, SwapDecision], ...]
"""The names by which a forward calls tagged functions, and what was decided for each."""


def load_source(source: LayerSource, backend: str) -> LoadedLayer:
    """What a mapping names, loaded; of a layer that is compiled at its first call, what stands for it until then."""
    if isinstance(source, CompiledLayer):
        return LoadedLayer(PendingLayer(source, backend), source.load, None, None)
    return load_layer(source, backend)


@functools.lru_cache(maxsize=4096)
def _loaded_again(source: Any, backend: str) -> LoadedLayer:
    return load_source(source, backend)


def _rebind(module: nn.Module, record: ModuleRecord | None) -> Any:
    """Unpickle a KernelForward. `module` is still empty here: only its class may be used."""
    cls = type(module)
    try:
        if record is None:
            raise KernelsHubError("its record of the decision is gone")
        forward = forward_of_record(record, cls)
        weights = weights_protocol(forward)
        if record.strict and weights is not None and hasattr(weights, "strict"):
            weights.strict(module, True)
        return KernelForward(forward, module)
    except (KernelsHubError, ImportError) as error:
        bound = KernelForward(cls.forward, module)
        bound.lost = f"the kernel could not be loaded again: {error}"
        logger.warning("%s keeps its original forward: %s", cls.__qualname__, bound.lost)
        return bound


def forward_of_record(record: ModuleRecord, cls: type[nn.Module]) -> Forward:
    """Load what a record refers to and bind it for a class again."""
    own = record.own
    if own is not None and (own.swapped or isinstance(own.source, CompiledLayer)):
        assert own.source is not None and own.target is not None
        kernel = bind_class_forward(
            _loaded_again(own.source, own.target.type), cls, own.positional, str(own.source)
        )
        kernel = kernel if own.copies else without_copies(kernel)
        return gated_by_size(kernel, cls, own.sizes, record.functions) if own.sizes else kernel  # type: ignore[arg-type]  # a class can be hashed
    return _forward_with_functions(cls, record.functions, record.chains)


@functools.lru_cache(maxsize=4096)
def gated_by_size(kernel: Forward, cls: type[nn.Module], sizes: Sizes, functions: Functions) -> Forward:
    """The kernel for first arguments of these sizes; for others the class's own forward with its functions' kernels."""
    original = _forward_with_functions(cls, functions) if any(each.swapped for _, each in functions) else None
    return gated_forward(kernel, cls, sizes, original)  # type: ignore[arg-type]  # a class can be hashed


def _forward_with_functions(
    cls: type[nn.Module], functions: Functions, chains: tuple[Chain, ...] = ()
) -> Forward:
    forward = cls.forward
    assert isinstance(forward, FunctionType)
    kernels = {
        name: _function_of_outcome(referred_as(forward, name), outcome)
        for name, outcome in functions
        if outcome.swapped
    }
    places = tuple((names, *_followers_again(decision)) for names, decision in chains)
    return overlaid_forward(cls, kernels, with_chains(cls, places) if places else None)


def _followers_again(decision: SwapDecision) -> tuple[Reference, Followers | None]:
    source = decision.source
    assert isinstance(source, Reference) and decision.target is not None
    return source, followers_in(_loaded_again(source, decision.target.type).package)


def _function_of_outcome(function: Forward, outcome: SwapDecision) -> Forward:
    assert outcome.source is not None and outcome.target is not None
    loaded = _loaded_again(outcome.source, outcome.target.type)
    return bind_function(loaded, function, outcome.positional, str(outcome.source))


def _rebind_function(original: Forward, outcome: SwapDecision) -> Forward:
    try:
        return kernel_function(_function_of_outcome(original, outcome), original, outcome)
    except (KernelsHubError, ImportError) as error:
        logger.warning(
            "function %s stays as it was: its kernel could not be loaded again: %s", original, error
        )
        return original


def _reduce_forward(bound: KernelForward) -> tuple[Any, ...]:
    return _rebind, (bound.args[0], record_of(bound.args[0]))


def _reduce_function(bound: KernelFunction) -> tuple[Any, ...]:
    return _rebind_function, (bound.original, bound.outcome)


copyreg.pickle(KernelForward, _reduce_forward)
copyreg.pickle(KernelFunction, _reduce_function)
