"""`briefly`: runs a module for what it does, where nobody needs what it computes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

_T = TypeVar("_T")
SECONDS = 0.5
"""In which most calls end; what takes longer costs less without values."""


class _TooLongError(BaseException):
    """Ends a run; no handler of a module's own is to catch it."""


def briefly(prepare: Callable[[], Callable[[], _T]], whole: Callable[[], _T]) -> _T:
    """What a run returns that takes no longer than `SECONDS`, else what one without values does.

    prepare: makes a run on copies, which may be cut off anywhere. A second one has PyTorch's ops compute shapes, dtypes
    and devices alone, on fake tensors. Where that raises, as a forward does that asks for values, or where there can be
    no copy, `whole` is called. Raises what the first run and `whole` raise.

    What the module has under torch.compile, as PyTorch 2.11's `torch.cond` is, runs as it is written: Dynamo would
    trace whoever watches the run, and keep that for the module's own calls.
    """
    import torch

    with torch.compiler.set_stance("force_eager"):
        return _briefly(prepare, whole)


def _briefly(prepare: Callable[[], Callable[[], _T]], whole: Callable[[], _T]) -> _T:
    try:
        run = prepare()
    except Exception:  # noqa: BLE001  (of what a module holds)
        return whole()
    try:
        with _ending_after(SECONDS):
            return run()
    except _TooLongError:
        pass
    run = prepare()
    try:
        with _without_values():
            return run()
    except Exception:  # noqa: BLE001  (of the module, or of PyTorch)
        return whole()


@contextmanager
def _without_values() -> Iterator[None]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True  # it tells what it cannot do, which is no news here
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        log.disabled = before


def _ending_after(seconds: float) -> AbstractContextManager[TorchDispatchMode]:
    from torch.utils._python_dispatch import TorchDispatchMode

    end = time.monotonic() + seconds

    class Ending(TorchDispatchMode):
        """Ends the run at the first op after the time."""

        supports_higher_order_operators = True  # such as torch.while_loop

        def __torch_dispatch__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            if time.monotonic() > end:
                raise _TooLongError
            return func(*args, **(kwargs or {}))

    return Ending()  # type: ignore[no-untyped-call]  # PyTorch's own
