"""What is known of the calls of one module that is compiled just in time: by signature, and by form.

A form is what of a signature can be told quickly, see `LayerCompiler.form`. Once a signature of a form was refused, and
none taken, calls of that form run the original, and their signatures are not asked for any more.

Even forms are asked for ever more rarely, as long as they are refused: up to 15 calls of the same names of arguments go
by in between. Where calls of another form are compiled (a prompt, but not its tokens), these have the same shape of the
first argument as well.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from kernels_hub.kernelization.compiled_layer import Arguments, Keywords
from kernels_hub.kernelization.fixed_sizes import FixedSizes, ValuedArguments
from kernels_hub.kernelization.jit_compilations import Compiled, Request

_LONGEST_PAUSE = 15
"""In calls: less than a short text has tokens, each of which is a call."""
_PATIENCE = 4
"""How many times as many calls as go by unseen were refused before."""


@dataclass
class Doubt:
    """A choice that was made by times of a disturbed machine. due: when it is to be timed again; pause: before that."""

    due: float
    pause: float


@dataclass(eq=False)
class ModuleCalls:
    """What is known of a module's calls."""

    chosen: dict[Hashable, Compiled] = field(default_factory=dict)
    """By signature: what its calls run on."""
    requests: dict[Hashable, Request] = field(default_factory=dict)
    """Not adopted yet."""
    doubts: dict[Hashable, Doubt] = field(default_factory=dict)
    """By signature: what is to be timed again."""
    of_sizes: dict[Hashable, FixedSizes | None] = field(default_factory=dict)
    """Signatures whose calls need a program for each of their sizes, or for each of those that a trace has fixed."""
    of_values: dict[Hashable, ValuedArguments] = field(default_factory=dict)
    """Signatures whose calls need a program for what some of their arguments hold."""
    refused: set[Hashable] = field(default_factory=set)
    """Training or not, and forms: calls that run the original, whatever their signatures."""
    misfits: bool = False
    """Whether the call that just ended had shapes that its compiled layer does not take."""
    strict: bool = False
    waits: bool = False
    running: int = 0
    """Calls under way, counted while anything is open."""
    is_full: bool = False
    """Whether so many signatures are refused that no more are noted."""
    is_spent: bool = False
    """Whether all the signatures that may be compiled were refused: whatever comes runs the original."""
    _taken: set[Hashable] = field(default_factory=set)
    """Forms of which a signature was compiled."""
    _last: tuple[object, ...] = ()
    """What was seen at a glance of the last refused call."""
    _seen: int = 0
    """Refused calls in a row of which the form was asked for."""
    _pause: int = 0
    """Calls that may go by before it is asked for again."""

    def is_like_the_last(self, args: Arguments, kwargs: Keywords) -> bool:
        """Whether a call is believed to be refused as those before it were, without a look at its arguments."""
        if self.is_spent:
            return True
        if not self._pause:
            return False
        if not self._taken:  # `_glance`, without another function: this is asked at every call
            if self._last != (len(args), *kwargs):
                return False
        elif self._last != self._glance(args, kwargs):
            return False
        self._pause -= 1
        return True

    def is_refused(self, form: Hashable | None, args: Arguments, kwargs: Keywords) -> bool:
        """Whether calls of a form run the original."""
        seen = self._glance(args, kwargs)
        if form not in self.refused:
            if seen == self._last:
                self._seen = self._pause = 0
            return False
        self._seen += 1
        self._pause = min(self._seen // _PATIENCE, _LONGEST_PAUSE)
        self._last = seen
        return True

    def _glance(self, args: Arguments, kwargs: Keywords) -> tuple[object, ...]:
        """How many arguments a call has by place, and which by name; where some are compiled, the first's shape."""
        if not self._taken:
            return len(args), *kwargs
        first = args[0] if args else next(iter(kwargs.values()), None)
        return getattr(first, "shape", None), len(args), *kwargs

    def note(self, form: Hashable | None, compiled: Compiled) -> None:
        """Note what came of a call of a form.

        What was compiled and kept for its time counts as taken: others of the form may gain.
        """
        if compiled.forward is not None or compiled.timing is not None:
            self._taken.add(form)
            self.refused.discard(form)
            return
        is_open = any(request.form == form for request in [*self.requests.values()])
        if form is not None and form not in self._taken and not is_open and not self.strict:
            self.refused.add(form)

    def spend(self) -> None:
        """Note that no other signature is to be compiled."""
        is_open = bool(self.requests or self.doubts or self.strict)
        self.is_spent = not is_open and all(one.forward is None for one in [*self.chosen.values()])
