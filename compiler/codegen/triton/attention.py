"""Attention as a Triton kernel: a block of queries for each program, running through the keys with an online softmax.

    best'  = max(best, max(scores));  total' = total * exp(best - best') + sum(exp(scores - best'))
    out'   = out * exp(best - best') + exp(scores - best') @ v;  the result is out / total

Scores that are weights themselves are added up as they are; of totals, best + log(total) is the result. In these, a
score of inf counts as 1 relative to a maximum of inf, where a softmax gives NaN.

Scores, their masks included, are the statements of the anchor on a tile [queries, keys]; keys that a causal mask hides
from all queries of a block are not read. Source: arXiv 2205.14135.
"""

from __future__ import annotations

from kernels_hub.compiler.codegen.causal import causal_scores
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import is_empty, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import HOST, KernelText, Launch
from kernels_hub.compiler.codegen.triton.options import Options, chosen
from kernels_hub.compiler.codegen.triton.product import dot, load
from kernels_hub.compiler.codegen.triton.text import Axis, Lines, TritonBody
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.dims import Dim, floordiv
from kernels_hub.compiler.runtime.tiles import attention_tile
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Attention, Nest, Weights
from kernels_hub.escaping import CommentText

MOST_WIDTH = 256
"""The widest heads: wider ones do not fit the registers."""


def print_attention(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    """Write the kernel of an attention."""
    return None if is_empty(nest.outer) else _Attention(name, nest, lines, names, options).emit()


class _Attention:
    """One kernel."""

    def __init__(self, name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> None:
        anchor = nest.anchor
        assert isinstance(anchor, Attention)
        self.nest, self.anchor, self.lines, self.options = nest, anchor, lines, options
        self.batch, self.head, self.query, self.value = nest.outer
        self.key = anchor.score_loops[3]
        self.bits = anchor.q.buffer.dtype.bits
        self.kernel = KernelText(name, nest, lines, names, (self.query.extent * self.key.extent,))
        axes = [
            Axis("rows", "row", "row_live"), Axis("columns", "column", "column_live"), Axis("keys", "key", "key_live"),
            Axis("q_width", "q_width", "q_live"), Axis("k_width", "k_width", "k_live"),
            Axis("values", "value", "value_live"),
        ]  # fmt: skip
        width = anchor.q.shape[3]
        self.q_width, self.k_width = Loop("$q_width", width), Loop("$k_width", width)
        self.keys = Loop("$key", self.key.extent)
        """The keys once more, as rows of v."""
        axis_of = {
            self.query.name: "rows", self.key.name: "columns", self.value.name: "values",
            "$q_width": "q_width", "$k_width": "k_width", "$key": "keys",
        }  # fmt: skip
        loops = (*nest.outer, self.key, self.q_width, self.k_width, self.keys)
        self.body = TritonBody(lines, names, loops, axes, axis_of)

    def emit(self) -> Launch:
        """The whole kernel."""
        lines, body, anchor = self.lines, self.body, self.anchor
        with self.kernel.define(["ROWS", "COLUMNS", "WIDTH", "VALUES"]):
            _program(self.kernel, body, (self.batch, self.head, self.query))
            self._queries()
            if anchor.weights is not Weights.SCORES:
                lines.add('best = tl.full([ROWS, 1], float("-inf"), tl.float32)')
                lines.add("total = tl.zeros([ROWS, 1], tl.float32)")
            if anchor.v is not None:
                lines.add("out = tl.zeros([ROWS, VALUES], tl.float32)")
            with lines.block(f"for start in range(0, {self._end()}, COLUMNS)"):
                self._block_of_keys()
            lines.add(f"{anchor.name} = {_result(anchor, self.key.extent, body)}")
            body.know(anchor.name, anchor.dtype, ["rows"] if anchor.v is None else ["rows", "values"])
            for statement in self.nest.body:
                body.emit(statement)
        return _launch(self.kernel, self.nest, anchor, self.options)

    def _end(self) -> str:
        """The keys that these queries see: with a causal mask, none behind that of the last query."""
        keys = self.body.index(self.key.extent)
        if self.anchor.weights is Weights.SCORES:  # -inf hides nothing
            return keys
        causal = causal_scores(self.anchor, self.anchor.scores, self.anchor.score)
        if causal is None:
            return keys
        last = f"(program % blocks + 1) * ROWS + {self.body.factor(causal[0])}"
        self.lines.add(f"seen = tl.minimum({keys}, {last})", CommentText("causal"))
        return "seen"

    def _queries(self) -> None:
        lines, body = self.lines, self.body
        lines.add(f"{self.query.name[1:]} = row")
        lines.add("value = tl.arange(0, VALUES)[None, :]")
        lines.add(f"value_live = value < {body.index(self.value.extent)}")
        lines.add(f"{self.value.name[1:]} = value")
        for one, where in (("q", "[None, :]"), ("k", "[:, None]")):
            lines.add(f"{one}_width = tl.arange(0, WIDTH){where}")
            lines.add(f"{one}_live = {one}_width < {body.index(self.q_width.extent)}")
        place = (self.batch.index, self.head.index, self.query.index, self.q_width.index)
        lines.add(f"q = {load(body, self.anchor.q, place, frozenset({'rows', 'q_width'}))}")

    def _block_of_keys(self) -> None:
        lines, body, anchor = self.lines, self.body, self.anchor
        wide = "" if self.kernel.index == "tl.int32" else f".to({self.kernel.index})"
        lines.add(f"column = (start + tl.arange(0, COLUMNS))[None, :]{wide}")
        lines.add(f"key = (start + tl.arange(0, COLUMNS))[:, None]{wide}")
        lines.add(f"column_live = column < {body.index(self.key.extent)}")
        lines.add(f"key_live = key < {body.index(self.key.extent)}")
        lines.add(f"{self.key.name[1:]} = column")
        head = _shared(self.head.index, anchor)
        place = (self.batch.index, head, self.key.index, self.k_width.index)
        lines.add(f"k = {load(body, anchor.k, place, frozenset({'columns', 'k_width'}))}")
        scale = "" if anchor.scale == 1.0 else f" * {anchor.scale!r}"
        product = dot("q", "k", "tl.zeros([ROWS, COLUMNS], tl.float32)", self.bits, self.options)
        lines.add(f"score = {product}{scale}", note_of(anchor.origin))
        body.know("score", types.FLOAT32, ["rows", "columns"])
        for statement in anchor.scores:
            body.emit(statement)
        if anchor.weights is Weights.SCORES:
            lines.add(f"powers = tl.where(column_live, {anchor.score}, 0.0)")
            self._add_values(head, "out")
        else:
            self._add_powers(head)

    def _add_powers(self, head: Dim) -> None:
        lines, anchor = self.lines, self.anchor
        lines.add(f'scores = tl.where(column_live, {anchor.score}, float("-inf"))')
        lines.add("better = tl.maximum(best, tl.max(scores, 1, keep_dims=True))")
        lines.add('least = tl.where(better == float("-inf"), 0.0, better)')
        if anchor.weights is Weights.TOTAL:
            lines.add('powers = tl.where(scores == float("inf"), 1.0, tl.exp(scores - least))')
            lines.add('fade = tl.where(best == float("inf"), 1.0, tl.exp(best - least))')
        else:
            lines.add("powers = tl.exp(scores - least)")
            lines.add("fade = tl.exp(best - least)")
        lines.add("total = total * fade + tl.sum(powers, 1, keep_dims=True)")
        if anchor.v is not None:
            self._add_values(head, "out * fade")
        lines.add("best = better")

    def _add_values(self, head: Dim, before: str) -> None:
        lines, body, anchor = self.lines, self.body, self.anchor
        assert anchor.v is not None
        place = (self.batch.index, head, self.keys.index, self.value.index)
        lines.add(f"v = {load(body, anchor.v, place, frozenset({'keys', 'values'}))}")
        narrow = f".to({anchor.v.buffer.dtype.triton})" if self.bits < 32 else ""
        lines.add(f"out = {dot(f'powers{narrow}', 'v', before, self.bits, self.options)}")


def _program(kernel: KernelText, body: TritonBody, loops: tuple[Loop, Loop, Loop]) -> None:
    """The queries of this program, its head and its batch."""
    lines, (batch, head, query) = kernel.lines, loops
    lines.add(f"program = {kernel.program()}")
    lines.add(f"blocks = tl.cdiv({body.index(query.extent)}, ROWS)")
    lines.add("row = (program % blocks * ROWS + tl.arange(0, ROWS))[:, None]")
    lines.add(f"row_live = row < {body.index(query.extent)}")
    lines.add("both = program // blocks")
    kernel.unravel("both", (batch, head), body.scalars)


def _shared(head: Dim, anchor: Attention) -> Dim:
    """The head of keys that a head of queries reads."""
    heads, few = anchor.q.shape[1], anchor.k.shape[1]
    if heads == few:
        return head
    return 0 if few == 1 else floordiv(head, floordiv(heads, few))


def _result(anchor: Attention, keys: Dim, body: TritonBody) -> str:
    if anchor.weights is Weights.TOTAL:
        return 'tl.where(best == float("-inf"), 0.0, best) + tl.log(total)'
    if anchor.weights is Weights.SCORES:
        return "out"
    if anchor.blank:
        return "tl.where(total == 0.0, 0.0, out / total)"
    if isinstance(keys, int) and keys:
        return "out / total"
    return f"tl.where({body.index(keys)} == 0, 0.0, out / total)"


def _launch(kernel: KernelText, nest: Nest, anchor: Attention, options: Options) -> Launch:
    batch, head, query, value = (loop.extent for loop in nest.outer)
    sizes = (query, anchor.score_loops[3].extent, anchor.q.shape[3], value)
    texts = tuple(HOST.index(size) for size in sizes)
    tile = chosen(attention_tile, sizes, texts, anchor.q.buffer.dtype.bits, late=options.late)
    grid = f"kh.cdiv({HOST.index(query)}, {tile.of('ROWS')}) * {HOST.factor(turns(nest.outer[:2]))}"
    tests = [f"{HOST.factor(one)} > 0" for one in (batch, head, query) if not isinstance(one, int)]
    return kernel.launch(" and ".join(tests), [grid], tile)
