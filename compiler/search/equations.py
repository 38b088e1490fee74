"""Equations for equality saturation, as data: name, meaning, guards.

    facts => actions        over the terms of `terms`

Facts are the pattern and the guards (rank and shape, dtype, exact constants, "made of weights alone"); actions name
what is equal. An equation that is `exact` keeps every bit but NaN's; all others keep numbers up to rounding, only in
dtypes that are wide, and are left out where rounding is not allowed. Further ones are derived: commutativity and
associativity from the table of ops, pointwise rules from the tables of `rewrite` (`derived`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.ir import ops
from kernels_hub.compiler.ir.op import Trait

MOST_TABLE = 1 << 26
"""Elements that a table of vectors may grow to when what follows a lookup is made part of it."""


@dataclass(frozen=True)
class Equation:
    """See the module. text: "facts => actions"; several texts are one equation read in several ways."""

    name: str
    doc: str
    texts: tuple[str, ...]
    exact: bool = False


def _eq(name: str, doc: str, *texts: str, exact: bool = False) -> Equation:
    return Equation(name, doc, texts, exact)


_WIDE = "(= d (dtype s)) (wide d)"
_PARTS = (
    "(= x (shape u)) (= y (shape v)) (= n (vec-length x)) (= i (vec-get x (- n 1))) (= j (vec-get y (- n 1)))"
    " (> i 0) (> j 0)"
)
_SIBLINGS = (
    f"(static u) (static v) (= k (first u)) (= l (last v)) (= h (last u)) (= (+ h 1) (first v)) {_PARTS}"
)
_BOTH = "(let w (Concat u v (- n 1))) (set (first w) k) (set (last w) l)"
_CUT = "(union p (Slice m (- n 1) 0 i)) (union q (Slice m (- n 1) i (+ i j)))"

EQUATIONS = (
    _eq("associate_products", "(A B) C = A (B C)",
        f"(= s (Matmul (Matmul a b) c)) {_WIDE} => (union s (Matmul a (Matmul b c)))",
        f"(= s (Matmul a (Matmul b c))) {_WIDE} => (union s (Matmul (Matmul a b) c))"),
    _eq("factor_products", "X U + X V = X (U + V);  U X + V X = (U + V) X;  with - as well",
        *(f'(= s (Bin "{op}" (Matmul a u) (Matmul a v))) {_WIDE} => (union s (Matmul a (Bin "{op}" u v)))'
          for op in ("add", "sub")),
        *(f'(= s (Bin "{op}" (Matmul u a) (Matmul v a))) {_WIDE} => (union s (Matmul (Bin "{op}" u v) a))'
          for op in ("add", "sub"))),
    _eq("factor_scales", "a x + b x = (a + b) x, a and b weights",
        f'(= s (Bin "add" (Bin "mul" a x) (Bin "mul" b x))) {_WIDE} (static a) (static b)'
        ' => (union s (Bin "mul" (Bin "add" a b) x))'),
    _eq("scale_out_of_product", "(c A) B = c (A B) = A (c B), c a number",
        *(f'(= s {one}) {_WIDE} (= y (shape s)) => (union s (Bin "mul" (Matmul a b) (Full c y)))'
          for one in ('(Matmul (Bin "mul" a (Full c x)) b)', '(Matmul a (Bin "mul" b (Full c x)))'))),
    _eq("scale_into_weight", "c (A W) = A (c W), c a number, W weights",
        f'(= s (Bin "mul" (Matmul a w) (Full c x))) {_WIDE} (static w) (= y (shape w))'
        ' => (union s (Matmul a (Bin "mul" w (Full c y))))'),
    _eq("transpose_twice", "A'' = A", "(= s (Swap (Swap a))) => (union s a)", exact=True),
    _eq("transpose_product", "(A B)' = B' A'",
        "(= s (Swap (Matmul a b))) => (union s (Matmul (Swap b) (Swap a)))",
        "(= s (Matmul (Swap b) (Swap a))) => (union s (Swap (Matmul a b)))"),
    _eq("transpose_pointwise", "f(A)' = f(A');  f(A, B)' = f(A', B')",
        "(= s (Swap (Un op a))) => (union s (Un op (Swap a)))",
        "(= s (Swap (Bin op a b))) => (union s (Bin op (Swap a) (Swap b)))", exact=True),
    _eq("batch_last", "what is done to a matrix of each batch is done to the one matrix",
        "(= s (Swap (Batch a x))) (= y (shape s)) => (union s (Batch (Swap a) y))",
        "(= s (Un op (Batch a x))) => (union s (Batch (Un op a) x))",
        "(= s (Bin op (Batch a x) (Batch b x))) => (union s (Batch (Bin op a b) x))",
        "(= s (Bin op (Batch a x) (Full c x))) (= y (shape a)) => (union s (Batch (Bin op a (Full c y)) x))",
        "(= s (Matmul (Batch a x) (Batch b y))) (= z (shape s)) => (union s (Batch (Matmul a b) z))",
        "(= s (Concat (Batch a x) (Batch b y) axis)) (= z (shape s)) (= n (vec-length x)) (> axis (- n 3))"
        " => (union s (Batch (Concat a b (- axis (- n 2))) z))", exact=True),
    _eq("row_last", "what is done to a vector of each row is done to the one vector",
        "(= s (Un op (Row a x))) => (union s (Row (Un op a) x))",
        "(= s (Bin op (Row a x) (Row b x))) => (union s (Row (Bin op a b) x))",
        "(= s (Bin op (Row a x) (Full c x))) (= y (shape a)) => (union s (Row (Bin op a (Full c y)) x))",
        exact=True),
    _eq("siblings", "X U and X V are parts of X [U V]: one product with a wider weight",
        f"(= p (Matmul a u)) (= q (Matmul a v)) {_SIBLINGS} => {_BOTH} (let m (Matmul a w)) {_CUT}"),
    _eq("siblings_with_bias", "X U + b and X V + c are parts of X [U V] + [b c]",
        f'(= p (Bin "add" (Matmul a u) (Row b z))) (= q (Bin "add" (Matmul a v) (Row c t))) (static b) (static c)'
        f' {_SIBLINGS} => {_BOTH} (let m (Bin "add" (Matmul a w) (Row (Concat b c 0) (vec-set z (- n 1) (+ i j)))))'
        f" {_CUT}"),
    _eq("concat_associates", "[[A B] C] = [A [B C]]",
        "(= s (Concat (Concat a b axis) c axis)) => (union s (Concat a (Concat b c axis) axis))", exact=True),
    _eq("concat_of_products", "[X U  X V] = X [U V];  X W over Y W = (X over Y) W",
        "(= s (Concat (Matmul a u) (Matmul a v) axis)) (= n (vec-length (shape s))) (= axis (- n 1))"
        " => (union s (Matmul a (Concat u v axis)))",
        "(= s (Concat (Matmul a w) (Matmul b w) axis)) (= n (vec-length (shape s))) (= axis (- n 2))"
        " => (union s (Matmul (Concat a b axis) w))"),
    _eq("product_of_concat", "[X Y] W = X (rows of W) + Y (the others), W weights",
        f"(= s (Matmul (Concat a b axis) w)) {_WIDE} (static w) (= x (shape a)) (= y (shape b)) (= n (vec-length x))"
        " (= axis (- n 1)) (= i (vec-get x axis)) (= j (vec-get y axis)) (> i 0) (> j 0)"
        ' => (union s (Bin "add" (Matmul a (Slice w (- n 2) 0 i)) (Matmul b (Slice w (- n 2) i (+ i j)))))'),
    _eq("slice_product", "rows of A B: (rows of A) B;  columns: A (columns of B)",
        *(f"(= s ({one.replace('$', '(Matmul a b)')})) (= n (vec-length (shape a))) (= axis (- n 2))"
          f" => (union s (Matmul ({one.replace('$', 'a')}) b))" for one in ("Slice $ axis i j", "Part $ axis k size")),
        "(= s (Slice (Matmul a b) axis i j)) (= n (vec-length (shape a))) (= axis (- n 1))"
        " => (union s (Matmul a (Slice b axis i j)))"),
    _eq("slice_pointwise", "parts of f(A, B) are f of the parts",
        *(text for one in ("Slice $ axis i j", "Part $ axis k size") for text in (
            f"(= s ({one.replace('$', '(Un op a)')})) => (union s (Un op ({one.replace('$', 'a')})))",
            (f"(= s ({one.replace('$', '(Bin op a b)')}))"
             f" => (union s (Bin op ({one.replace('$', 'a')}) ({one.replace('$', 'b')})))"),
            f"(= s ({one.replace('$', '(Full c x)')})) (= y (shape s)) => (union s (Full c y))",
            (f"(= s ({one.replace('$', '(Row a x)')})) (= y (shape s)) (= n (vec-length y)) (!= axis (- n 1))"
             " => (union s (Row a y))"),
            (f"(= s ({one.replace('$', '(Batch a x)')})) (= y (shape s)) (= n (vec-length y)) (< axis (- n 2))"
             " => (union s (Batch a y))"))),
        "(= s (Slice (Batch a x) axis i j)) (= y (shape s)) (= n (vec-length y)) (>= axis (- n 2))"
        " => (union s (Batch (Slice a (- axis (- n 2)) i j) y))", exact=True),
    _eq("slice_twice", "parts of parts",
        "(= s (Slice (Slice a axis i j) axis k l)) => (union s (Slice a axis (+ i k) (+ i l)))", exact=True),
    _eq("reduce_product", "the sum (mean) of the rows of X W = (the sum of the rows of X) W",
        *(f'(= s (Reduce "{op}" (Matmul a (Batch w x)) 1)) {_WIDE} (= 3 (vec-length x))'
          f' => (union s (Matmul (Reduce "{op}" a 1) w))' for op in ("reduce_sum", "reduce_mean"))),
    _eq("reduce_shift", "the mean of the rows of X + b = (the mean of the rows of X) + b",
        f'(= s (Reduce "reduce_mean" (Bin "add" a (Row b x)) axis)) {_WIDE} (= y (shape s)) (= n (vec-length x))'
        ' (< axis (- n 1)) (> (vec-length y) 1) => (union s (Bin "add" (Reduce "reduce_mean" a axis) (Row b y)))'),
    _eq("table_times_weight", "rows of a table times a weight are rows of (the table times the weight)",
        f"(= s (Matmul (Gather e at) w)) (static e) (static w) {_WIDE} (= 2 (vec-length (shape w))) (= x (shape e))"
        f" (= y (shape w)) (< (* (vec-get x 0) (vec-get y 1)) {MOST_TABLE}) (>= (vec-get x 0) 0)"
        " => (union s (Gather (Matmul e w) at))",
        f"(= s (Matmul (Gather e at) (Batch w z))) (static e) (static w) {_WIDE} (= x (shape e)) (= y (shape w))"
        f" (< (* (vec-get x 0) (vec-get y 1)) {MOST_TABLE}) (>= (vec-get x 0) 0)"
        " => (union s (Gather (Matmul e w) at))"),
    _eq("table_pointwise", "f of rows of a table are rows of f of the table",
        "(= s (Un op (Gather e at))) (static e) => (union s (Gather (Un op e) at))",
        "(= s (Bin op (Gather e at) (Row b x))) (static e) (static b) (= y (shape e))"
        " => (union s (Gather (Bin op e (Row b y)) at))",
        "(= s (Bin op (Gather e at) (Full c x))) (static e) (static c) (= y (shape e))"
        " => (union s (Gather (Bin op e (Full c y)) at))", exact=True),
    _eq("unit", "1 x = x;  x + -0.0 is left to the rewrites",
        '(= s (Bin "mul" a (Full c x))) (= 1.0 (number c)) => (union s a)',
        '(= s (Bin "div" a (Full c x))) (= 1.0 (number c)) => (union s a)', exact=True),
    _eq("commute", "a + b = b + a, and whatever else the table of ops calls commutative",
        "(= s (Bin op a b)) (commutative op) => (union s (Bin op b a))", exact=True),
    _eq("associate", "(a + b) + c = a + (b + c), and whatever else the table of ops calls associative",
        f"(= s (Bin op (Bin op a b) c)) (associative op) {_WIDE} => (union s (Bin op a (Bin op b c)))"),
)  # fmt: skip


SIGN_OF_ZERO = frozenset({"maximum", "minimum"})
"""Of 0.0 and -0.0 these give the one that stands in a certain place."""


def facts_of_ops() -> str:
    """Which ops are commutative and associative, as the table says: but for those that tell zeros by their place."""
    lines = []
    for row in ops.OPS.values():
        if row.name in SIGN_OF_ZERO:
            continue
        for trait, fact in ((Trait.COMMUTATIVE, "commutative"), (Trait.ASSOCIATIVE, "associative")):
            if trait in row.traits:
                lines.append(f'({fact} "{row.name}")')
    return " ".join(lines)
