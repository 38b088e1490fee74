"""Numbers of a program: index arithmetic over sizes, computed once a call, by their places in a table."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.ir.dims import Dim, Expr, Opaque, Symbol

_CONSTANT, _SIZE, _ADD, _MULTIPLY = range(4)
_OPAQUE = {"floordiv": 4, "mod": 5, "min": 6, "max": 7}


class Numbers:
    """The table while it grows; sizes stand first. rows: (kind, a, b), as interpreter/bytecode.cpp reads them."""

    def __init__(self, sizes: Sequence[str]) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self._known: dict[tuple[int, int, int], int] = {}
        self._dims: dict[Dim, int] = {}
        self._sizes = {name: self._row(_SIZE, place, 0) for place, name in enumerate(sizes)}

    def of(self, dim: Dim) -> int:
        """The place of a dim, or of a sum or product of dims, over sizes alone."""
        if not isinstance(dim, Expr):
            return self._row(_CONSTANT, int(dim), 0)
        if dim not in self._dims:
            self._dims[dim] = self._expression(dim)
        return self._dims[dim]

    def _expression(self, dim: Expr) -> int:
        total: int | None = None
        for monomial, coefficient in dim.terms:
            factors = [self._atom(one) for one, power in monomial for _ in range(power)]
            if coefficient != 1 or not factors:
                factors.append(self._row(_CONSTANT, coefficient, 0))
            term = self._folded(_MULTIPLY, factors)
            total = term if total is None else self._row(_ADD, total, term)
        return self._row(_CONSTANT, 0, 0) if total is None else total

    def _atom(self, one: object) -> int:
        if isinstance(one, Symbol):
            return self._sizes[one.name]
        assert isinstance(one, Opaque)
        return self._folded(_OPAQUE[one.kind], [self.of(arg) for arg in one.args])

    def _folded(self, kind: int, places: Sequence[int]) -> int:
        found, *rest = places
        for place in rest:
            found = self._row(kind, found, place)
        return found

    def _row(self, kind: int, a: int, b: int) -> int:
        row = (kind, a, b)
        if row not in self._known:
            self._known[row] = len(self.rows)
            self.rows.append(row)
        return self._known[row]
