"""Every row of the table of derivatives against finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler.autodiff.rule import Derivative
from kernels_hub.compiler.autodiff.rules import DERIVATIVES, add_derivative, derivative_of
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.ir.ops import OPS
from tests.compiler.autodiff.gradcheck import assert_gradient, gradcheck
from tests.compiler.autodiff.rule_cases import ROWS, Case, floats


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
def test_a_row(case: Case):
    both = gradcheck(case.graph(), case.inputs())
    assert both.backward.nodes


def test_every_row_has_a_case():
    """A row with no case is not known to be right; a case of no row tests nothing."""
    assert {case.row for case in ROWS} == {row.name for row in OPS.values() if derivative_of(row)}
    for case in ROWS:
        assert case.row in {node.op.name for node in case.graph().nodes}, case.id


def test_rows_are_of_the_op_table():
    assert set(DERIVATIVES) <= set(OPS)
    assert all(row.doc and row.op == name for name, row in DERIVATIVES.items())
    for row in OPS.values():
        assert row.derivative is None or (row.derivative.doc and row.name not in DERIVATIVES)
        assert not (derivative_of(row) and Trait.STEP in row.traits)


def test_a_row_is_entered_once():
    with pytest.raises(TypeRuleError, match="'exp' has a derivative already"):
        add_derivative(Derivative("exp", lambda site: [site.gradient], "another"))
    with pytest.raises(TypeRuleError, match="'gather' has a derivative already"):
        add_derivative(Derivative("gather", lambda site: [site.gradient, None], "another"))
    with pytest.raises(TypeRuleError, match="no op is called 'nothing'"):
        add_derivative(Derivative("nothing", lambda site: [site.gradient], "of no op"))


def test_what_is_wrong_is_found():
    """The comparison that all of this rests on rejects what is slightly off."""
    right = floats(3, 4)
    assert_gradient("x", right, right)
    for wrong in (right * (1 + 1e-5), right.T, np.where(right > 1, np.nan, right)):
        with pytest.raises(AssertionError):
            assert_gradient("x", wrong, right)
