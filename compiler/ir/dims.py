"""Dims: the algebra of shapes.

A dim is a Python int, or an `Expr`: a polynomial with integer coefficients over atoms, where an atom is
a named symbol or an opaque term (floor division, modulo, minimum, maximum of exprs). Exprs are built
canonical: two that are equal as polynomials over their atoms compare (and hash) equal, and one that is
constant is an int. Whatever is known of a symbol (its bounds) is part of the symbol.

`a == b` is that comparison of forms. What holds only by reasoning about bounds and opaque terms is asked
of `proofs.py`: `proves_equal`, `proves_le`. There is no `<` on exprs: it could be neither.

Own algebra rather than sympy, measured on one machine: sympy 1.14 takes 236 ms to import, and 130 µs for a
sum of products, 2.5 ms for a floor division, 2.1 ms for a maximum and 0.5 ms for a comparison by `expand`;
this has nothing to import, and takes 14, 13, 45 and 14 µs.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from kernels_hub.compiler.errors import DimError
from kernels_hub.escaping import quoted

Monomial = tuple[tuple["Atom", int], ...]
"""Atoms and their powers, sorted; () for the constant."""

Dim = Any
"""int | Expr. Any, since mypy would want a cast wherever an int meets an operator of Expr."""

Samples = tuple[int | None, ...]

_SAMPLES = 3
_SPREAD = 997
"""By how much symbols differ in samples at most; in the first all are as small as they may be."""


class Atom:
    """What polynomials are over: a `Symbol` or an `Opaque` term. `key` orders and identifies it."""

    __slots__ = ("_hash", "key", "samples")

    key: tuple[Any, ...]
    samples: Samples

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def __lt__(self, other: Atom) -> bool:
        return self.key < other.key


class Symbol(Atom):
    """A named size, unknown until bound, with inclusive bounds. Two with other bounds are other symbols."""

    __slots__ = ("max", "min", "name")

    def __init__(self, name: str, minimum: int = 0, maximum: int | None = None) -> None:
        if not name:
            raise DimError("a symbol has a name")
        if minimum < 0:
            raise DimError(f"symbol {name!r}: a size is never below 0, so {minimum} is no lower bound")
        if maximum is not None and maximum < minimum:
            raise DimError(f"symbol {name!r}: its largest value {maximum} is below its smallest {minimum}")
        self.name, self.min, self.max = name, minimum, maximum
        text = name.encode(errors="surrogatepass")
        others = (minimum + zlib.crc32(text, place) % _SPREAD for place in range(1, _SAMPLES))
        self.samples = (minimum, *(one if maximum is None else min(one, maximum) for one in others))
        super().__init__((0, name, minimum, -1 if maximum is None else maximum))

    def __repr__(self) -> str:
        return self.facts

    @property
    def facts(self) -> str:
        """As the printed form states it: "n >= 1", or "n in 1..8"."""
        name = symbol_text(self.name)
        return f"{name} >= {self.min}" if self.max is None else f"{name} in {self.min}..{self.max}"


class Opaque(Atom):
    """floordiv(a, b), mod(a, b), min(…) or max(…) of exprs, which no polynomial expresses."""

    __slots__ = ("args", "kind")

    def __init__(self, kind: str, args: tuple[Dim, ...]) -> None:
        self.kind, self.args = kind, args
        self.samples = tuple(_value(kind, values) for values in zip(*map(samples, args), strict=True))
        super().__init__((1, kind, tuple(sort_key(arg) for arg in args)))


def _value(kind: str, args: tuple[int | None, ...]) -> int | None:
    known = [value for value in args if value is not None]
    if len(known) < len(args):
        return None
    if kind in {"min", "max"}:
        return min(known) if kind == "min" else max(known)
    a, b = known
    if b == 0:
        return None
    return a // b if kind == "floordiv" else a % b


class Expr:
    """A dim that depends on symbols. Immutable; +, -, *, //, % with ints and exprs."""

    __slots__ = ("__dict__", "_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return _text(self)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol in it."""
        return frozenset(_symbols(self))

    @cached_property
    def samples(self) -> Samples:
        """See the function `samples`."""
        totals: list[int | None] = [0] * _SAMPLES
        for monomial, coefficient in self.terms:
            for place, total in enumerate(totals):
                if total is not None:
                    term: int | None = coefficient
                    for one, power in monomial:
                        value = one.samples[place]
                        term = None if value is None or term is None else term * value**power
                    totals[place] = None if term is None else total + term
        return tuple(totals)

    @property
    def only_symbol(self) -> Symbol | None:
        """The symbol that it is, where it is one and nothing else."""
        if len(self.terms) != 1 or self.terms[0][1] != 1 or len(self.terms[0][0]) != 1:
            return None
        ((symbol, power),) = self.terms[0][0]
        return symbol if power == 1 and isinstance(symbol, Symbol) else None

    @property
    def constant(self) -> int:
        """The constant term."""
        return next((coefficient for monomial, coefficient in self.terms if not monomial), 0)

    def __bool__(self) -> bool:
        raise DimError(f"whether the dim {self} is zero is not known; ask proofs.proves_equal or proves_le")

    def __index__(self) -> int:
        raise DimError(f"the dim {self} is not a number here; bind {', '.join(names(self))} first")

    __int__ = __index__

    def __neg__(self) -> Dim:
        return _polynomial({monomial: -coefficient for monomial, coefficient in self.terms})

    def __add__(self, other: Dim) -> Dim:
        total = dict(self.terms)
        for monomial, coefficient in _terms(other):
            total[monomial] = total.get(monomial, 0) + coefficient
        return _polynomial(total)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        total: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                product = _times(left, right)
                total[product] = total.get(product, 0) + a * b
        return _polynomial(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)


def symbol(name: str, minimum: int = 0, maximum: int | None = None) -> Expr:
    """The dim that is the symbol `name`, known to lie in minimum..maximum.

    >>> symbol("n", 1) * 4 + 2
    4*n + 2
    """
    return atom(Symbol(name, minimum, maximum))


def samples(dim: Dim) -> Samples:
    """Values of a dim at a few sizes of its symbols, those of all dims at the same ones; None where it divides by 0."""
    return dim.samples if isinstance(dim, Expr) else (int(dim),) * _SAMPLES


def atom(one: Atom) -> Expr:
    """The dim that is one atom."""
    return Expr(((((one, 1),), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b, rounded down. Whole multiples leave the division, common factors are cancelled."""
    if isinstance(a, int) and isinstance(b, int):
        _not_zero(a, b, "//")
        return a // b
    for dividend in _written(a):
        if (exact := divide_exactly(dividend, b)) is not None:
            return exact
    if not isinstance(b, int):
        whole = _by_symbol(a, b)
        return atom(Opaque("floordiv", (a, b))) if whole is None else whole
    if b < 0:
        return floordiv(-a, -b)
    outside, inside = _split(a, b)
    common = math.gcd(b, *(coefficient for monomial, coefficient in inside.items() if monomial))
    inside = {monomial: coefficient // common for monomial, coefficient in inside.items()}
    b //= common
    rest = _polynomial(inside)
    if isinstance(rest, int) or b == 1:
        return _polynomial(outside) + rest // b
    inner = only_opaque(rest)
    if inner is not None and inner.kind == "floordiv" and isinstance(inner.args[1], int):
        return _polynomial(outside) + floordiv(inner.args[0], inner.args[1] * b)
    return _polynomial(outside) + atom(Opaque("floordiv", (rest, b)))


def _by_symbol(a: Dim, b: Expr) -> Dim | None:
    """a // b of a symbol b that is not 0, where what is left of whole multiples is -1, or sure to be less than b."""
    if b.only_symbol is None:
        return None
    ((divisor, _),) = b.terms
    quotient: dict[Monomial, int] = {}
    rest = 0
    for monomial, coefficient in _terms(a):
        if (part := _without(monomial, divisor)) is not None:
            quotient[part] = coefficient
        elif monomial:
            return None
        else:
            rest = coefficient
    if rest != -1 and not 0 <= rest < b.only_symbol.min:
        return None
    return _polynomial(quotient) + (-1 if rest < 0 else 0)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """a / b, rounded up, for b > 0."""
    return floordiv(a + (b - 1), b)


def mod(a: Dim, b: Dim) -> Dim:
    """a % b, of the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        _not_zero(a, b, "%")
        return a % b
    if any(divide_exactly(dividend, b) is not None for dividend in _written(a)):
        return 0
    if isinstance(b, int) and b > 0:
        a = _polynomial(_split(_without_inner_mod(a, b), b)[1])
        if isinstance(a, int):
            return a % b
    return atom(Opaque("mod", (a, b)))


def _written(a: Dim) -> Iterator[Dim]:
    """A dim, and what it is without remainders."""
    yield a
    if (other := without_mod(a)) is not a:
        yield other


def without_mod(dim: Dim) -> Dim:
    """The dim with x % b as x - b * (x // b), and (-x) % b as b * ceildiv(x, b) - x: s + (-s) % 8 is a product then."""
    for one in [one for monomial, _ in _terms(dim) for one, _ in monomial]:
        if not isinstance(one, Opaque) or one.kind != "mod":
            continue
        x, b = one.args
        value = x - b * floordiv(x, b)
        if isinstance(b, int):
            negative = _polynomial({monomial: number - b for monomial, number in _terms(x)})
            if all(2 * number > b for _, number in _terms(x)):
                value = negative + b * ceildiv(-negative, b)
        dim = replace_atom(dim, one, value)
    return dim


def _without_inner_mod(a: Dim, b: int) -> Dim:
    """A dim that is equal modulo b: (b - x % b) % b, how padding to whole windows is written, is (b - x) % b."""
    for one in [one for monomial, _ in _terms(a) for one, _ in monomial]:
        if isinstance(one, Opaque) and one.kind == "mod" and isinstance(m := one.args[1], int) and m % b == 0:
            a = replace_atom(a, one, one.args[0])
    return a


def divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """The polynomial q with q * b == a, or None where there is none. Holds wherever b is not zero."""
    if isinstance(b, int) and b == 0:
        raise DimError(f"{a} is divided by zero")
    quotient: Dim = 0
    rest = a
    lead, factor = _terms(b)[-1]
    for _ in range(2 * len(_terms(a)) + 4):
        if isinstance(rest, int) and rest == 0:
            return quotient
        monomial, coefficient = _terms(rest)[-1]
        without = _without(monomial, lead)
        if without is None or coefficient % factor:
            return None
        step = _polynomial({without: coefficient // factor})
        quotient = quotient + step
        rest = rest - step * b
    return None


def product(dims: Iterable[Dim]) -> Dim:
    """Their product; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = dim * total if isinstance(total, int) and total == 1 else total * dim
    return total


def replace_atom(dim: Dim, one: Atom, value: Dim) -> Dim:
    """The dim with one atom replaced, where it stands as a factor (not inside opaque terms)."""
    total: Dim = 0
    for monomial, coefficient in _terms(dim):
        rest = tuple((factor, power) for factor, power in monomial if factor != one)
        term: Dim = _polynomial({rest: coefficient})
        for _ in range(next((power for factor, power in monomial if factor == one), 0)):
            term = term * value
        total = total + term
    return total


def check_facts(one: Symbol, value: int) -> None:
    """Raise DimError unless a number may be bound to a symbol."""
    if value < one.min or (one.max is not None and value > one.max):
        raise DimError(f"{symbol_text(one.name)} = {value} contradicts {one.facts}")


def dim_symbols(dims: Iterable[Dim]) -> frozenset[Symbol]:
    """Every symbol in several dims."""
    symbols: frozenset[Symbol] = frozenset()
    for dim in dims:
        if isinstance(dim, Expr):
            symbols |= dim.symbols
    return symbols


def names(dim: Dim) -> list[str]:
    """The names of its symbols, sorted."""
    return sorted(symbol.name for symbol in dim_symbols((dim,)))


def symbol_text(name: str) -> str:
    """A symbol's name as it is printed: in double quotes unless it is an identifier."""
    if name.isascii() and name.isidentifier() and name not in {"min", "max"}:
        return name
    return quoted(name)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    return dim.terms if isinstance(dim, Expr) else (((), int(dim)),)


def sort_key(dim: Dim) -> tuple[Any, ...]:
    """Orders dims: ints first, then by terms."""
    if isinstance(dim, int):
        return (0, dim)
    return (1, *((tuple((one.key, power) for one, power in monomial), c) for monomial, c in dim.terms))


def _order(monomial: Monomial) -> tuple[Any, ...]:
    """A monomial order (by degree, then as words), so that long division by the last term ends."""
    word = tuple(one.key for one, power in monomial for _ in range(power))
    return len(word), word


def _polynomial(total: Mapping[Monomial, int]) -> Dim:
    terms = [(monomial, coefficient) for monomial, coefficient in total.items() if coefficient]
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    if len(terms) > 1:
        terms.sort(key=lambda term: _order(term[0]))
    return Expr(tuple(terms))


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for one, power in b:
        powers[one] = powers.get(one, 0) + power
    return tuple(sorted(powers.items()))


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    powers = dict(monomial)
    for one, power in divisor:
        if powers.get(one, 0) < power:
            return None
        powers[one] -= power
    return tuple((one, power) for one, power in powers.items() if power)


def _split(dim: Dim, divisor: int) -> tuple[dict[Monomial, int], dict[Monomial, int]]:
    """dim = divisor * outside + inside, coefficients inside in 0..divisor-1."""
    outside, inside = {}, {}
    for monomial, coefficient in _terms(dim):
        outside[monomial], inside[monomial] = divmod(coefficient, divisor)
    return outside, inside


def only_opaque(dim: Dim) -> Opaque | None:
    """The opaque term that a dim is, with nothing around it."""
    if isinstance(dim, int) or len(dim.terms) != 1:
        return None
    monomial, coefficient = dim.terms[0]
    if coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    atom = monomial[0][0]
    return atom if isinstance(atom, Opaque) else None


def _symbols(dim: Dim) -> Iterator[Symbol]:
    for monomial, _ in _terms(dim):
        for one, _ in monomial:
            if isinstance(one, Symbol):
                yield one
            elif isinstance(one, Opaque):
                for arg in one.args:
                    yield from _symbols(arg)


def _not_zero(a: Dim, b: Dim, sign: str) -> None:
    if b == 0:
        raise DimError(f"{a} {sign} {b}: division by zero")


def _text(expr: Expr) -> str:
    pieces: list[str] = []
    highest_first = sorted(expr.terms, key=lambda term: -sum(power for _, power in term[0]))
    for monomial, coefficient in highest_first:
        factors = [_atom_text(one) for one, power in monomial for _ in range(power)]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        if len(factors) > 1 or coefficient < 0:
            factors = [f"({factor})" if "//" in factor or "%" in factor else factor for factor in factors]
        text = "*".join(factors)
        if pieces:
            pieces.append(f"- {text}" if coefficient < 0 else f"+ {text}")
        else:
            pieces.append(f"-{text}" if coefficient < 0 else text)
    return " ".join(pieces)


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, Symbol):
        return symbol_text(atom.name)
    assert isinstance(atom, Opaque)
    if atom.kind in {"min", "max"}:
        return f"{atom.kind}({', '.join(map(str, atom.args))})"
    sign = {"floordiv": "//", "mod": "%"}[atom.kind]
    left, right = (
        str(arg) if isinstance(arg, int) or arg.only_symbol is not None else f"({arg})" for arg in atom.args
    )
    return f"{left}{sign}{right}" if sign == "//" else f"{left} {sign} {right}"
