"""Rewrites of loop nests, as data: name, meaning, "facts => actions" over the terms of `schedule.loop_plan`.

What a nest allows are facts (`space`): which axes have a result for each turn (`parallel`), which meet in one
(`reduced`), which pairs of loops may change places (`free`), where tiles may end (`cut`), along which axes vectors
lie (`lanes`), and which operand a loop reads again in each turn (`reuses`). All keep the numbers, but for the order of
sums.

Three constructors stand for a plan on its way to another sort: `Copied o p` is p reading operand o from a copy,
`Held p` is p on results that stay in registers, `Flat p` is p written out. `Alone p` is p, in one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.schedule.loop_plan import KINDS, SORTS

MOST_HELD = 512
"""Results that are held in registers at most, lanes counted."""


@dataclass(frozen=True)
class NestRule:
    """See the module."""

    name: str
    doc: str
    texts: tuple[str, ...]


def _rule(name: str, doc: str, *texts: str) -> NestRule:
    return NestRule(name, doc, texts)


def _constructors() -> str:
    """The terms of `loop_plan` in egglog's language; nothing stands around `Share`, which is of the root's sort."""
    sorts = {"p": "P", "h": "H", "u": "U"}
    lines = []
    for op, (numbers, parts) in KINDS.items():
        of = "R" if op == "Share" else sorts[SORTS.get(op, "p")]
        given = ["i64"] * numbers + ["R" if op == "Share" else sorts[part] for part in parts]
        lines.append(f"(constructor {op} ({' '.join(given)}) {of})")
    return "\n".join(lines)


LANGUAGE = f"""
(sort P)
(sort H)
(sort U)
(sort R)
{_constructors()}
(constructor Alone (P) R)
(constructor Copied (i64 P) P)
(constructor Held (P) H)
(constructor Flat (P) U)
(relation parallel (i64))
(relation reduced (i64))
(relation free (i64 i64))
(relation cut (i64 i64))
(relation lanes (i64 i64 i64))
(relation reuses (i64 i64))
(relation bit (i64 i64))
(function results (P) i64 :merge old)
(function depth (P) i64 :merge old)
(function copies (P) i64 :merge old)
(ruleset facts)
(ruleset nests)
"""

FACTS = (
    "(= p (Add m)) => (set (results p) 1) (set (depth p) 1) (set (copies p) m)",
    "(= p (Each a n s q)) (= m (copies q)) => (set (copies p) m)",
    "(= p (Peel a n q r)) (= m (copies q)) => (set (copies p) m)",
    "(= p (Each a n s q)) (parallel a) (= r (results q)) => (set (results p) (* (/ n s) r))",
    "(= p (Each a n s q)) (parallel a) (= d (depth q)) => (set (depth p) d)",
    "(= p (Each a n s q)) (reduced a) (= r (results q)) => (set (results p) r)",
    "(= p (Each a n s q)) (reduced a) (= d (depth q)) => (set (depth p) (* (/ n s) d))",
)
"""How many results a nest adds to, how many elements to each, and which operands it reads from copies (bits)."""

RULES = (
    _rule("split", "for i < n  =  for blocks of c: for i in the block",
          "(= p (Each a n s q)) (cut a c) (> n c) (> c s) (= 0 (% n c)) (= 0 (% c s))"
          " => (union p (Each a n c (Each a c s q)))"),
    _rule("peel", "for i < n  =  for the blocks that are whole, and the rest",
          "(= p (Each a n 1 q)) (cut a c) (> n c) (!= 0 (% n c))"
          " => (union p (Peel a (- n (% n c)) (Each a (- n (% n c)) 1 q) (Each a (% n c) 1 q)))"),
    _rule("swap", "for i: for j  =  for j: for i, where no turn waits for another",
          "(= p (Each a n s (Each b m t q))) (free a b) => (union p (Each b m t (Each a n s q)))"),
    _rule("fuse", "for i: x; for i: y  =  for i: x, y, where y needs of x what its own turn made",
          "(= p (Then (Each a n s x) (Each a n s y))) (parallel a) => (union p (Each a n s (Then x y)))"),
    _rule("stage", "what the turns of a loop read again is copied before it",
          "(= p (Each a n s q)) (> n s) (reuses o a) (bit o b) (= m (copies p)) (= 0 (& m b))"
          " => (union p (Stage o (Copied o p)))",
          "(= p (Copied o (Each a n s q))) => (union p (Each a n s (Copied o q)))",
          "(= p (Copied o (Peel a n q r))) => (union p (Peel a n (Copied o q) (Copied o r)))",
          "(= p (Copied o (Add m))) (bit o b) (= 0 (& m b)) => (union p (Add (| m b)))"),
    _rule("hold", "results stay in registers while they are added to",
          f"(= p (Each a n s q)) (reduced a) (<= (results p) {MOST_HELD}) => (union p (Hold (Held p)))",
          "(= h (Held p)) (= p (Each a n s q)) (reduced a) => (union h (Turn a n s (Held q)))",
          "(= h (Held p)) (= 1 (depth p)) => (union h (Tile (Flat p)))"),
    _rule("unroll", "the turns of a short loop are written out",
          "(= u (Flat p)) (= p (Each a n s q)) (parallel a) => (union u (Unroll a n s (Flat q)))",
          "(= u (Flat (Add m))) => (union u (Point m))"),
    _rule("vectorize", "turns whose elements lie beside each other run at once",
          "(= u (Flat p)) (= p (Each a n 1 (Add m))) (lanes a n m) => (union u (Lanes a n (Point m)))"),
    _rule("share", "threads share turns that have results of their own",
          "(= r (Alone p)) (= p (Each a n s q)) (parallel a) (> n s) => (union r (Share a n s (Alone q)))"),
)  # fmt: skip
