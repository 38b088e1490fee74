"""`PackedWeight`: a parameter whose values are held in oneDNN's layout only.

`free(weight)` makes one from a parameter; once the parameter is let go of, its memory is, too. The
stand-in has its shape, dtype and device, and any operation on it gives right numbers:

    1. layers that know it multiply with the packed values directly (`Holder.usable`)
    2. other operations run on a dense copy that is unpacked for them and dropped afterwards
    3. in-place operations unpack, apply and pack again
    4. operations that return a view of it make it dense, and it is not packed again (until it is freed
       anew): writes through the view must be seen, and they are not counted as versions
    5. whatever asks for its bytes (`data_ptr`, `numpy`, safetensors) makes it dense beside the packed copy
    6. pickling and `torch.save` write a plain dense tensor; a deepcopy holds packed values of its own

While the original parameter is alive elsewhere (an embedding that shares it with the output layer),
it stays the truth: it is read, written and checked for edits, so both keep the same values.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.library import Library
from torch.nn import Parameter

from . import cache

_NAMESPACE = (__package__ or "kernels_hub_packed").replace(".", "_")
_LIBRARY = Library(_NAMESPACE, "FRAGMENT")

_NO_BYTES = (
    "a weight freed by free_weights=True has no bytes to read here; call restore(model) of kernels_hub first"
)
_explain_access = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)

_HOLDERS: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


class Holder:
    """The values of one PackedWeight and of everything detached from it."""

    __slots__ = ("__weakref__", "_dense", "_origin", "_packed", "requires_grad")

    def __init__(self, packed: Tensor, origin: Parameter | None, requires_grad: bool) -> None:
        self._packed = packed
        self._dense: Parameter | None = None
        self._origin: Callable[[], Parameter | None] = (
            (lambda: None) if origin is None else weakref.ref(origin)
        )
        self.requires_grad = requires_grad
        """Of the parameter that was freed; the stand-in itself requires none."""

    def truth(self) -> Parameter | None:
        """The dense parameter that has the values, where one is alive; None where only the packed ones are."""
        return self._dense if self._dense is not None else self._origin()

    def usable(self) -> tuple[Tensor | None, Parameter | None]:
        """(packed values, None), or (None, dense parameter) for what could not be packed again."""
        truth = self.truth()
        if truth is None:
            return self._packed, None
        packed = cache.packed_copy(truth)
        if packed is None:
            return None, truth
        self._packed = packed
        return packed, None

    def read(self) -> Tensor:
        """The values as a dense tensor: the truth itself where it is alive, else unpacked. Not to be written."""
        truth = self.truth()
        return truth.detach() if truth is not None else self._packed.to_dense()

    def unpacked(self) -> Tensor:
        """A dense copy of the values that nobody else holds."""
        truth = self.truth()
        return truth.detach().clone() if truth is not None else self._packed.to_dense()

    def materialize(self, *, viewed: bool) -> Parameter:
        """The truth as a dense parameter; from now on, that is what has the values.

        viewed: whether views of it are handed out, through which it may be written unnoticed.
        """
        self._dense = self._parameter()
        if viewed:
            cache.exclude(self._dense)
        return self._dense

    def written(self, dense: Tensor) -> None:
        """Take over what an in-place operation did to `dense`, which `read` returned."""
        truth = self.truth()
        if truth is not None:
            cache.forget(truth)  # the operation ran below the place where versions are counted
        else:
            self._packed = cache.reorder(dense)

    def restored(self) -> Parameter:
        """The dense parameter again: the original one if it is still alive, and one for all who ask."""
        truth = self._parameter()
        cache.readmit(truth)
        self._dense, self._origin = None, weakref.ref(truth)
        return truth

    def settle(self) -> None:
        """Let go of a dense parameter that views or requests for bytes have brought about."""
        if self._dense is not None:
            self._packed = cache.reorder(self._dense)
            self._dense = None

    def _parameter(self) -> Parameter:
        truth = self.truth()
        if truth is None:
            with torch.inference_mode(False), torch.no_grad():
                truth = Parameter(self._packed.to_dense(), requires_grad=self.requires_grad)
            cache.adopt(truth, self._packed)
        return truth

    def packed_only(self) -> Holder:
        """A holder with the same values in packed form and with no tie to this one."""
        return Holder(cache.reorder(self.read()), None, self.requires_grad)

    @property
    def extra_nbytes(self) -> int:
        """Bytes held beyond those of one dense copy of the values."""
        truth = self.truth()
        if truth is not None:
            entry = cache.entry_of(truth)
            return entry.nbytes if entry is not None else 0
        return max(0, cache.packed_nbytes(self._packed) - self._packed.numel() * self._packed.element_size())


class PackedWeight(Tensor):
    """A tensor that holds its values packed. Made by `free`; see the module's text for what it does."""

    holder: Holder | None
    """None in a compiled graph's example tensors, which have a shape and no values."""
    ticket: Tensor
    """Stands for this tensor in operators and compiled graphs: int64, the same shape, one element of
    storage, whose value is the holder's number."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, holder: Holder | None, ticket: Tensor, dtype: torch.dtype) -> Self:
        weight: Self = torch.Tensor._make_wrapper_subclass(
            cls, ticket.shape, dtype=dtype, device=torch.device("cpu")
        )
        weight.holder, weight.ticket = holder, ticket
        # Code of PyTorch's in C++ that reads the memory, such as torch.jit.save, would read from address 0.
        if holder is not None and _explain_access is not None:
            _explain_access(Tensor.untyped_storage(weight)._cdata, _NO_BYTES)
        return weight

    @classmethod
    def of(cls, holder: Holder, shape: torch.Size, dtype: torch.dtype) -> PackedWeight:
        """A new parameter over a holder."""
        number = next(_NUMBERS)
        _HOLDERS[number] = holder
        with torch.inference_mode(False), torch.no_grad():
            weight = cls(holder, torch.tensor(number).expand(shape), dtype)
        weight._is_param = True
        return weight

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        return ["ticket"], self.dtype

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], dtype: torch.dtype, size: Any, stride: Any
    ) -> PackedWeight:
        return PackedWeight(None, inner["ticket"], dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]._share()
        call = _DenseCall(function)
        new_args = [
            call.dense(value, argument) for value, argument in zip(args, call.arguments, strict=False)
        ]
        by_name = {argument.name: argument for argument in call.arguments}
        new_kwargs = {name: call.dense(value, by_name[name]) for name, value in (kwargs or {}).items()}
        return call.finish(function(*new_args, **new_kwargs))

    def _share(self) -> PackedWeight:
        with torch.inference_mode(False):  # `detach` sets the version counter of what it returns
            return PackedWeight(self.holder, self.ticket, self.dtype)

    @property
    def data(self) -> Tensor:
        """The same values without gradient; assigned to, the weight becomes a plain parameter in place."""
        return self._share()

    @data.setter
    def data(self, value: Tensor) -> None:
        requires_grad = self.holder is not None and self.holder.requires_grad
        torch.utils.swap_tensors(self, Parameter(value, requires_grad=requires_grad))

    # Whatever asks for the bytes of a parameter by one of these methods may write to them. (Not among
    # them: untyped_storage, which torch.compile asks of every tensor and does not read.)

    def data_ptr(self) -> int:
        return self._bytes().data_ptr() if self.holder is not None else super().data_ptr()

    def storage(self) -> Any:
        return self._bytes()._typed_storage()

    def numpy(self, *, force: bool = False) -> Any:
        return self._bytes().numpy(force=force)

    def tolist(self) -> Any:
        return self._bytes().tolist()

    def _bytes(self) -> Tensor:
        if self.holder is None:
            raise RuntimeError("a freed weight has no values while a graph is being compiled")
        return self.holder.materialize(viewed=False).detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            assert self.holder is not None
            copy = PackedWeight.of(self.holder.packed_only(), self.shape, self.dtype)
            copy._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = copy.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        assert self.holder is not None
        dense = self.holder.unpacked()
        if getattr(self, "_is_param", False):
            return Parameter(dense, requires_grad=self.holder.requires_grad).__reduce_ex__(protocol)
        return dense.__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PackedWeight(shape={tuple(self.shape)}, dtype={self.dtype})"


class _DenseCall:
    """One operation on PackedWeights: their dense values go in, what was written comes back."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.arguments = function._schema.arguments
        self._written: list[tuple[PackedWeight, Tensor]] = []

    def dense(self, value: Any, argument: Any) -> Any:
        """The argument with dense tensors in the place of PackedWeights."""
        if isinstance(value, list | tuple):
            return type(value)(self.dense(item, argument) for item in value)
        if not isinstance(value, PackedWeight):
            return value
        alias = argument.alias_info
        if value.holder is None:
            if alias is not None and alias.is_write:
                raise RuntimeError(
                    f"{self.function}: a compiled graph cannot write to a freed weight; restore the model first"
                )
            return _unpack(value.ticket, value.dtype)
        if alias is None:
            return value.holder.read()
        if not alias.is_write:
            return value.holder.materialize(viewed=True).detach()
        for weight, values in self._written:
            if weight.holder is value.holder:
                return values
        values = value.holder.read()
        self._written.append((value, values))
        return values

    def finish(self, result: Any) -> Any:
        """Pack again what was written; an operation that returns what it wrote to returns the PackedWeight."""
        for weight, values in self._written:
            if values.shape != weight.shape or values.dtype is not weight.dtype:
                raise RuntimeError(
                    f"{self.function} cannot change the shape or dtype of a freed weight in place"
                )
            assert weight.holder is not None
            weight.holder.written(values)
        if not self._written:
            return result
        if isinstance(result, list | tuple):
            return type(result)(self._returned(item) for item in result)
        return self._returned(result)

    def _returned(self, result: Any) -> Any:
        return next((weight for weight, values in self._written if values is result), result)


def free(weight: Parameter) -> PackedWeight | None:
    """The PackedWeight that stands for a parameter, one for all who ask; None where it cannot be packed.

    None as well where its memory is part of more, as of a flat buffer: that may be written to, and would not be free.
    Its packed values unpack to the very bits of the parameter (this is checked). Memory is freed
    once nobody holds the parameter any more.
    """
    if cache.packed_copy(weight) is None:
        return None
    entry = cache.entry_of(weight)
    if entry is None or entry.packed is None:  # edited meanwhile by another thread
        return None
    if entry.wrapper is None:
        if _is_part_of_more(weight):
            return None
        dense = entry.packed.to_dense()
        bits = torch.int32 if weight.element_size() == 4 else torch.int16
        if not torch.equal(dense.view(bits), weight.detach().view(bits)):
            return None
        entry.wrapper = PackedWeight.of(
            Holder(entry.packed, weight, weight.requires_grad), weight.shape, weight.dtype
        )
    wrapper: PackedWeight = entry.wrapper
    return wrapper


def _is_part_of_more(weight: Parameter) -> bool:
    """Whether a weight lies in memory of other tensors as well."""
    return weight.untyped_storage().nbytes() > weight.nbytes


def holder_of(ticket: Tensor) -> Holder:
    """The holder that a ticket stands for. Raises RuntimeError where its weight is gone."""
    number = int(ticket.as_strided((), ()))
    holder = _HOLDERS.get(number)
    if holder is None:
        raise RuntimeError("a compiled graph refers to a freed weight that is gone; compile the model again")
    return holder


def _define_unpack() -> Any:
    _LIBRARY.define("unpack(Tensor ticket, ScalarType dtype) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl("unpack", lambda ticket, dtype: holder_of(ticket).unpacked(), "CPU")
    torch.library.register_fake(
        f"{_NAMESPACE}::unpack",
        lambda ticket, dtype: ticket.new_empty(ticket.shape, dtype=dtype),
        lib=_LIBRARY,
    )
    return getattr(torch.ops, _NAMESPACE).unpack.default


_unpack = _define_unpack()
