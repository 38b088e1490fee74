"""What a call finds beside its module and arguments: modes, hooks of all modules, what its forward asks for.

Answers that a forward got are facts of the module that was compiled, under names that no attribute has:

    "@default_dtype"       torch.get_default_dtype(), where it is not float32
    "@is_grad_enabled"     what torch says, where code names that function; "@is_inference_mode_enabled",
                           "@are_deterministic_algorithms_enabled" and "@initial_seed" likewise
    "@environ.NAME"        a variable of the environment, None where there is none
    "@layout"              "plain" where the code asks tensors for strides, whether they require a gradient, or whether
                           they are a Parameter, and where strides decide what its results share
    "@apart"               "tensors" where the code asks whether things are the same object
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from .errors import Misfit
from .parts import Module

# Asked at every call, with nothing of it in a cache: names of this module are found sooner than those of torch's.
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_is_autocast_enabled = torch.is_autocast_enabled
_is_tracing = torch._C._is_tracing
_is_transformed = torch._C._are_functorch_transforms_active
_count_of_function_modes = torch._C._len_torch_function_stack
_count_of_dispatch_modes = torch._C._len_torch_dispatch_stack
_forward_hooks = torch.nn.modules.module._global_forward_hooks
_forward_pre_hooks = torch.nn.modules.module._global_forward_pre_hooks
_get_default_dtype = torch.get_default_dtype
_TENSORS = (torch.Tensor, torch.nn.Parameter)

ANSWERS: Mapping[str, Callable[[], object]] = {
    "@is_grad_enabled": torch.is_grad_enabled,
    "@is_inference_mode_enabled": torch.is_inference_mode_enabled,
    "@are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "@initial_seed": torch.initial_seed,
}
"""By the name of a fact: what a forward is told."""
_ENVIRON, _DTYPE, _LAYOUT, _APART = "@environ.", "@default_dtype", "@layout", "@apart"


class Surroundings:
    """What calls of a program must find. modules: of its table."""

    def __init__(self, modules: Sequence[Module], device: str) -> None:
        asked = {
            name: answer for one in modules for name, answer in one.facts.items() if name.startswith("@")
        }
        self._device = device
        self._has_parts = len(modules) != 1
        self._dtype = getattr(torch, asked.pop(_DTYPE, "float32"))
        self._wants_plain = asked.pop(_LAYOUT, None) is not None
        self._wants_apart = asked.pop(_APART, None) is not None
        self._asked = asked

    def check(self, values: Sequence[object]) -> None:
        """Raise Misfit where the original would compute something else than the program. values: the arguments."""
        if _is_any_autocast_enabled() and _is_autocast_enabled(self._device):
            raise Misfit("autocast", "torch.autocast is on, which the program does not follow")
        if _is_tracing() or _is_transformed():
            raise Misfit("tracing", "it is traced, or transformed by torch.func")
        if forward_ad._current_level >= 0:
            raise Misfit("forward gradient", "forward-mode gradients are on")
        if _count_of_dispatch_modes() or (_count_of_function_modes() and not self._is_default_device()):
            raise Misfit(
                "mode", "a mode of torch.overrides or of a dispatcher is on, which sees the original's calls"
            )
        if self._has_parts and (_forward_hooks or _forward_pre_hooks):
            raise Misfit(
                "hooks of all modules", "hooks of all modules are registered, which the program would not run"
            )
        if parametrize._cache_enabled:
            raise Misfit("parametrizations", "parametrizations are cached")
        for value in values:
            if type(value) in _TENSORS and value.__dict__:
                raise Misfit(
                    "attributes",
                    f"a tensor is given with attributes of its own ({', '.join(value.__dict__)})",
                )
        if _get_default_dtype() is not self._dtype:
            raise Misfit(
                "default dtype", f"torch's default dtype is not {self._dtype}, for which it was compiled"
            )
        if self._asked or self._wants_plain or self._wants_apart:
            self._check_asked(values)

    def _is_default_device(self) -> bool:
        """Whether the only mode is that of torch.set_default_device, for the device of the program."""
        mode: Any = torch._C._get_function_stack_at(0)
        return (
            _count_of_function_modes() == 1
            and type(mode).__module__ == "torch.utils._device"
            and mode.device.type == self._device
        )

    def _check_asked(self, values: Sequence[object]) -> None:
        for name, expected in self._asked.items():
            found = (
                os.environ.get(name.removeprefix(_ENVIRON)) if name.startswith(_ENVIRON) else ANSWERS[name]()
            )
            if found != expected:
                raise Misfit(
                    name, f"its forward asks for {name[1:]}, which is {found!r}; it was {expected!r}"
                )
        if self._wants_plain and not all(map(is_plain, pytree.tree_leaves(list(values)))):
            raise Misfit(
                "layout", "its forward asks for strides or gradients of tensors, and is given other ones"
            )
        if self._wants_apart and not are_apart(values):
            raise Misfit(
                "same object",
                "its forward asks whether things are the same object, and is given a tensor twice or a weight",
            )


def are_apart(values: Sequence[object]) -> bool:
    """Whether no tensor is given twice, and none may be the module's own."""
    tensors = [one for one in pytree.tree_leaves(list(values)) if isinstance(one, torch.Tensor)]
    return len(set(map(id, tensors))) == len(tensors) and not any(
        isinstance(one, torch.nn.Parameter) for one in tensors
    )


def is_plain(value: object) -> bool:
    """Whether a tensor has nothing of its own but what it holds."""
    return not isinstance(value, torch.Tensor) or bool(
        value.is_contiguous()
        and value.storage_offset() == 0
        and not value.requires_grad
        and not isinstance(value, torch.nn.Parameter)
        and not value.is_inference()
        and not value.is_conj()
        and not value.is_neg()
    )
