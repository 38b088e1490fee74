"""N-grams, optimizers and trees as tensor arithmetic, against ONNX's reference and against definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.importers.onnx_ops import trees
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import DTYPES
from kernels_hub.compiler.ir.verify import verify

DOMAINS = {"": 20, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1}


def model(
    op: str,
    inputs: Sequence[tuple[str, Sequence[int | str]]],
    outputs: int,
    domain: str = "",
    opset: int = 0,
    **attrs: Any,
) -> onnx.ModelProto:
    """One op on inputs of (dtype, shape)."""
    names = [f"x{place}" for place in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{place}" for place in range(outputs)], domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(DTYPES[dtype].numpy), shape)
        for name, (dtype, shape) in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
    versions = {**DOMAINS, **({domain: opset} if opset else {})}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*one) for one in versions.items()])


def close(mine: np.ndarray, theirs: np.ndarray) -> None:
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-6)


def agrees(one: onnx.ModelProto, *arrays: np.ndarray, dtypes: Sequence[Any] = ()) -> Graph:
    """The graph, after it gave what the reference gives (cast, where its dtypes are not those of the standard)."""
    graph = verify(import_onnx(one))
    feeds = {info.name: array for info, array in zip(one.graph.input, arrays, strict=True)}
    wanted = ReferenceEvaluator(one).run(None, feeds)
    for place, (mine, theirs) in enumerate(zip(evaluate(graph, feeds).values(), wanted, strict=True)):
        close(mine, np.asarray(theirs, dtypes[place] if dtypes else theirs.dtype))
    return graph


def refusal(one: onnx.ModelProto) -> str:
    with pytest.raises(OnnxImportError) as error:
        import_onnx(one)
    return error.value.unsupported[0].reason


def test_close_rejects_wrong_numbers():
    x = np.ones(3, np.float32)
    for wrong in (x + 1e-4, x[:2], x.astype(np.float64)):
        with pytest.raises(AssertionError):
            close(wrong, x)


# -- n-grams

POOL = {
    "ngram_counts": [0, 3, 9],
    "pool_int64s": [1, 2, 0, 1, 2, 2, 2, 0, 1, 0, 1, 2, 2, 2, 2],
    "ngram_indexes": [3, 0, 1, 2, 6, 4, 5, 8],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(
    ("lengths", "skip"), [((1, 1), 4), ((1, 2), 0), ((1, 3), 2), ((2, 3), 5), ((3, 3), 1)]
)
def test_ngrams(mode: str, lengths: tuple[int, int], skip: int):
    weights = [0.5, 2.0, 3.0, 0.25, 1.0, 7.0, 11.0, 13.0, 17.0]
    attrs = {
        **POOL, "mode": mode, "weights": weights, "max_skip_count": skip,
        "min_gram_length": lengths[0], "max_gram_length": lengths[1],
    }  # fmt: skip
    for shape in ((12,), (4, 12), (3, 2), (1, 1)):
        x = np.random.default_rng(0).integers(0, 4, shape)
        wanted = agrees(model("TfIdfVectorizer", [("int64", shape)], 1, **attrs), x)
        axes = ["rows", "columns"][2 - len(shape) :]
        graph = verify(import_onnx(model("TfIdfVectorizer", [("int64", axes)], 1, **attrs)))
        close(*(next(iter(evaluate(one, [x]).values())) for one in (graph, wanted)))


def test_ngrams_that_are_refused():
    attrs = {
        "mode": "TF",
        "max_skip_count": 0,
        "min_gram_length": 1,
        "max_gram_length": 1,
        "ngram_counts": [0],
    }
    strings = model("TfIdfVectorizer", [("int64", [3])], 1, **attrs, pool_strings=["a"], ngram_indexes=[0])
    assert "strings have no place in the IR" in refusal(strings)
    short = {**attrs, "mode": "IDF", "weights": [1.0], "pool_int64s": [5], "ngram_indexes": [4]}
    assert (
        refusal(model("TfIdfVectorizer", [("int64", [3])], 1, **short)) == "there are 1 weights for 5 places"
    )
    odd = {**attrs, "ngram_counts": [0, 1], "pool_int64s": [5, 6], "ngram_indexes": [0]}
    assert (
        refusal(model("TfIdfVectorizer", [("int64", [3])], 1, **odd)) == "the pool has 1 numbers for 2-grams"
    )


# -- optimizers

OPTIMIZERS = [
    ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}),
    ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.05, "alpha": 0.95, "beta": 0.999, "epsilon": 1e-5}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.85, "mode": "standard"}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.85, "mode": "nesterov"}),
]  # fmt: skip


@pytest.mark.parametrize("updates", [0, 1, 1000])
@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize(("op", "states", "attrs"), OPTIMIZERS)
def test_optimizers(op: str, states: int, attrs: dict[str, Any], tensors: int, updates: int):
    random = np.random.default_rng(0)
    shapes = [(2, 3), (5,)][:tensors] * (2 + states)
    arrays = [abs(random.standard_normal(shape)).astype(np.float32) for shape in shapes]
    inputs = [("float32", ()), ("int64", ()), *(("float32", shape) for shape in shapes)]
    one = model(op, inputs, tensors * (1 + states), "ai.onnx.preview.training", **attrs)
    scalars = np.array(0.1, np.float32), np.array(updates)
    agrees(one, *scalars, *arrays, dtypes=[np.float32] * len(one.graph.output))


def test_optimizers_whose_operands_do_not_add_up():
    inputs = [("float32", ()), ("int64", ()), *[("float32", (2,))] * 5]
    one = model("Adagrad", inputs, 2, "ai.onnx.preview.training")
    assert refusal(one) == "5 tensors are no 3 for each that is updated"
    attrs = {"alpha": 0.9, "beta": 0.9, "norm_coefficient": 0.0, "mode": "fast"}
    one = model("Momentum", inputs[:5], 2, "ai.onnx.preview.training", **attrs)
    assert refusal(one) == "the mode is 'fast'; it must be standard or nesterov"


# -- trees

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


class Grown:
    """A random forest, in the attributes of the older ops and of the newer one."""

    def __init__(
        self, seed: int, *, trees: int, depth: int, features: int, modes: Sequence[int], targets: int
    ) -> None:
        self.random, self.modes, self.features, self.targets = (
            np.random.default_rng(seed),
            modes,
            features,
            targets,
        )
        self.nodes: list[list[float]] = []
        """Each: tree, name in it, mode (-1: leaf), feature, split, yes, no, missing."""
        self.leaves: list[tuple[int, int, int, float]] = []
        for tree in range(trees):
            self._grow(tree, depth, [0])

    def _grow(self, tree: int, depth: int, names: list[int]) -> int:
        name = names[0]
        names[0] += 1
        if depth == 0 or self.random.random() < 0.2:
            self.nodes.append([tree, name, -1, 0, 0, 0, 0, 0])
            for target in self.random.permutation(self.targets)[: self.random.integers(1, self.targets + 1)]:
                self.leaves.append((tree, name, int(target), float(self.random.integers(-8, 9)) / 4))
            return name
        row = [
            tree, name, self.random.choice(self.modes), self.random.integers(self.features),
            self.random.integers(-2, 3), 0, 0, self.random.integers(2),
        ]  # fmt: skip
        self.nodes.append(row)
        row[5], row[6] = self._grow(tree, depth - 1, names), self._grow(tree, depth - 1, names)
        return name

    def column(self, place: int) -> list[int]:
        return [int(row[place]) for row in self.nodes]

    def by_names(self, what: str, weights: str = "float32") -> dict[str, Any]:
        trees, names, targets, numbers = zip(*self.leaves, strict=True)
        splits = [float(row[4]) for row in self.nodes]
        attrs = {
            "nodes_treeids": self.column(0), "nodes_nodeids": self.column(1),
            "nodes_modes": ["LEAF" if mode == -1 else MODES[mode] for mode in self.column(2)],
            "nodes_featureids": self.column(3), "nodes_truenodeids": self.column(5),
            "nodes_falsenodeids": self.column(6), "nodes_missing_value_tracks_true": self.column(7),
            f"{what}_treeids": trees, f"{what}_nodeids": names, f"{what}_ids": targets,
        }  # fmt: skip
        if weights == "float32":
            return {**attrs, "nodes_values": splits, f"{what}_weights": numbers}
        tensors = {"nodes_values_as_tensor": splits, f"{what}_weights_as_tensor": numbers}
        return {
            **attrs,
            **{name: onnx.numpy_helper.from_array(np.array(one)) for name, one in tensors.items()},
        }

    def newer(self, dtype: str) -> dict[str, Any]:
        """For forests with one target a leaf; a tree that is a leaf becomes a node that leads to it either way."""
        inner, leaf = {}, {}
        for row in self.nodes:
            key = (int(row[0]), int(row[1]))
            (leaf if row[2] == -1 else inner)[key] = len(leaf if row[2] == -1 else inner)
        rows = [row for row in self.nodes if row[2] != -1]
        ways = {"true": 5, "false": 6}
        tensor = lambda one: onnx.numpy_helper.from_array(np.array(one))  # noqa: E731
        return {
            "tree_roots": [inner[tree, 0] for tree in sorted({int(row[0]) for row in self.nodes})],
            "nodes_modes": tensor(np.array([row[2] for row in rows], np.uint8)),
            "nodes_featureids": [int(row[3]) for row in rows],
            "nodes_splits": tensor(np.array([row[4] for row in rows], dtype)),
            "nodes_missing_value_tracks_true": [int(row[7]) for row in rows],
            **{
                f"nodes_{way}leafs": [int((int(r[0]), r[at]) in leaf) for r in rows]
                for way, at in ways.items()
            },
            **{
                f"nodes_{way}nodeids": [{**inner, **leaf}[int(r[0]), r[at]] for r in rows]
                for way, at in ways.items()
            },
            "leaf_targetids": [target for _, _, target, _ in self.leaves],
            "leaf_weights": tensor(np.array([one for *_, one in self.leaves], dtype)),
            "n_targets": self.targets,
        }

    def reached(self, x: np.ndarray, *, every: bool) -> list[list[tuple[int, int]]]:
        """Of each row, the leaf of each tree. every: that NaN differs from every number counts."""
        table = {(int(row[0]), int(row[1])): row for row in self.nodes}
        found: list[list[tuple[int, int]]] = []
        for values in x.astype(float):
            found.append([])
            for tree in sorted({int(row[0]) for row in self.nodes}):
                key = (tree, 0)
                while (row := table[key])[2] != -1:
                    a, b = values[int(row[3])], row[4]
                    holds = [a <= b, a < b, a >= b, a > b, a == b, a != b][int(row[2])]
                    way = bool(row[7]) or (holds and every) if np.isnan(a) else holds
                    key = (tree, int(row[5] if way else row[6]))
                found[-1].append(key)
        return found

    def scores(self, x: np.ndarray, how: str) -> np.ndarray:
        result = np.zeros((len(x), self.targets))
        for place, keys in enumerate(self.reached(x, every=True)):
            for target in range(self.targets):
                said = [
                    w
                    for key in keys
                    for tree, name, of, w in self.leaves
                    if (tree, name) == key and of == target
                ]
                if said:
                    result[place, target] = {
                        "SUM": sum(said), "AVERAGE": sum(said) / len(keys), "MIN": min(said), "MAX": max(said),
                    }[how]  # fmt: skip
        return result


def rows(count: int, features: int, dtype: str = "float32") -> np.ndarray:
    x = np.random.default_rng(1).integers(-3, 4, (count, features)).astype(dtype)
    if x.dtype.kind == "f" and count > 2:
        x[1, 0] = np.nan
        x[2, -1] = np.inf
    return x


def scores_of(one: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return list(evaluate(verify(import_onnx(one)), [x]).values())[-1]


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("modes", [[0], [1], range(6)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float32 in float64"])
def test_tree_regressor(how: str, modes: Sequence[int], dtype: str):
    dtype, _, wide = dtype.partition(" in ")
    for seed in range(3):
        grown = Grown(seed, trees=4, depth=5, features=3, modes=modes, targets=2)
        attrs = {**grown.by_names("target", wide or "float32"), "n_targets": 2, "aggregate_function": how}
        one = model("TreeEnsembleRegressor", [(dtype, ["n", 3])], 1, "ai.onnx.ml", 3, **attrs)
        x = rows(20, 3, dtype)
        close(scores_of(one, x), grown.scores(x, how).astype(np.float32))
        based = model(
            "TreeEnsembleRegressor", [(dtype, ["n", 3])], 1, "ai.onnx.ml", 3, **attrs, base_values=[1.0, -2.0]
        )
        close(scores_of(based, x), (grown.scores(x, how) + np.array([1, -2])).astype(np.float32))


@pytest.mark.parametrize("modes", [[0], range(5)])
def test_tree_regressor_as_the_reference(modes: Sequence[int]):
    """Without BRANCH_NEQ of NaN, on which it differs from ONNX Runtime and from the newer op."""
    grown = Grown(7, trees=3, depth=6, features=2, modes=modes, targets=1)
    one = model(
        "TreeEnsembleRegressor",
        [("float32", [30, 2])],
        1,
        "ai.onnx.ml",
        3,
        **grown.by_names("target"),
        n_targets=1,
    )
    agrees(one, rows(30, 2))


@pytest.mark.parametrize(
    ("modes", "dtype", "native"), [([0], "float32", True), (range(6), "int64", True), ([1], "float64", False)]
)
def test_trees_of_float32_are_one_op(modes: Sequence[int], dtype: str, native: bool):
    grown = Grown(2, trees=6, depth=5, features=3, modes=modes, targets=2)
    for how in ("SUM", "AVERAGE", "MAX"):
        attrs = {**grown.by_names("target"), "n_targets": 2, "aggregate_function": how}
        graph = import_onnx(model("TreeEnsembleRegressor", [(dtype, ["n", 3])], 1, "ai.onnx.ml", 3, **attrs))
        names = [node.op.name for node in graph.live()]
        assert ("tree_ensemble" in names, "gather" in names) == (native, not native)


def test_nodes_that_several_lead_to_are_no_tree():
    """The op has none of these: they are walked level by level, and give what each way to them gives."""
    attrs = {
        "nodes_treeids": [0] * 4, "nodes_nodeids": [0, 1, 2, 3], "nodes_featureids": [0, 1, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 2, 0, 0], "nodes_falsenodeids": [2, 3, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [2, 3], "target_ids": [0, 0], "target_weights": [5.0, 7.0], "n_targets": 1,
    }  # fmt: skip
    graph = import_onnx(model("TreeEnsembleRegressor", [("float32", ["n", 2])], 1, "ai.onnx.ml", 3, **attrs))
    x = np.array([[1, 0], [-1, -1], [-1, 1]], np.float32)
    assert next(iter(evaluate(graph, [x]).values())).tolist() == [[5], [5], [7]]


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 2])
def test_a_leaf_that_says_something_of_a_target_twice(targets: int, how: str):
    """Of one target ONNX Runtime takes the first; skl2onnx writes numbers of leaves so, once a class."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    attrs = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0] * 5,
        "target_nodeids": [2, 1, 1, 2, 2], "target_ids": [0] * 5, "target_weights": [7.0, 5.0, 4.0, 9.0, 1.0],
        "n_targets": targets, "aggregate_function": how,
    }  # fmt: skip
    one = model("TreeEnsembleRegressor", [("float32", ["n", 1])], 1, "ai.onnx.ml", 3, **attrs)
    one.ir_version = 8
    x = np.array([[-1], [1]], np.float32)
    (wanted,) = onnxruntime.InferenceSession(one.SerializeToString()).run(None, {"x0": x})
    close(scores_of(one, x), wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("how", [0, 1, 2, 3])
def test_tree_ensemble(dtype: str, how: int):
    for seed in (0, 4, 5):
        grown = Grown(seed, trees=3, depth=5, features=2, modes=range(6), targets=1)
        if any(row[2] == -1 and row[1] == 0 for row in grown.nodes):
            continue
        attrs = {**grown.newer(dtype), "aggregate_function": how}
        one = model("TreeEnsemble", [(dtype, ["n", 2])], 1, "ai.onnx.ml", **attrs)
        x = rows(20, 2, dtype)
        wanted = grown.scores(x, ("AVERAGE", "SUM", "MIN", "MAX")[how])
        assert np.abs(scores_of(one, x) - wanted).max() <= (1e-6 if dtype != "float16" else 4e-3)
        assert scores_of(one, x).dtype == dtype


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_tree_classifier(transform: str):
    grown = Grown(3, trees=5, depth=4, features=3, modes=[0], targets=3)
    attrs = {**grown.by_names("class"), "classlabels_int64s": [7, -1, 4], "post_transform": transform}
    one = model("TreeEnsembleClassifier", [("float32", [25, 3])], 2, "ai.onnx.ml", 3, **attrs)
    x = rows(25, 3)
    graph = agrees(one, x)
    labels, scores = evaluate(graph, [x]).values()
    assert np.array_equal(labels, np.array([7, -1, 4])[scores.argmax(1)])
    assert len(set(labels.tolist())) > 1


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("told", [0, 1])
def test_tree_classifier_with_weights_for_one_class_of_two(told: int, positive: bool, transform: str):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    grown = Grown(2, trees=4, depth=4, features=2, modes=[0], targets=1)
    attrs = {**grown.by_names("class"), "classlabels_int64s": [3, 9], "post_transform": transform}
    attrs["class_ids"] = [told] * len(attrs["class_ids"])
    if positive:
        attrs["class_weights"] = [abs(one) / 8 for one in attrs["class_weights"]]
    one = model("TreeEnsembleClassifier", [("float32", [25, 2])], 2, "ai.onnx.ml", 3, **attrs)
    fed = {"x0": rows(25, 2)}
    wanted = onnxruntime.InferenceSession(one.SerializeToString()).run(None, fed)
    for mine, theirs in zip(evaluate(verify(import_onnx(one)), fed).values(), wanted, strict=True):
        close(mine, theirs)


def test_trees_that_are_refused():
    grown = Grown(4, trees=1, depth=2, features=2, modes=[0], targets=1)
    attrs = {**grown.by_names("target"), "n_targets": 1}

    def of(width: int = 2, **other: Any) -> str:
        return refusal(
            model(
                "TreeEnsembleRegressor", [("float32", ["n", width])], 1, "ai.onnx.ml", 3, **{**attrs, **other}
            )
        )

    inner = attrs["nodes_modes"].index("BRANCH_LEQ")
    around = [0 if place == inner else to for place, to in enumerate(attrs["nodes_truenodeids"])]
    nowhere = [99 if place == inner else to for place, to in enumerate(attrs["nodes_truenodeids"])]
    assert inner == 0
    assert of(nodes_truenodeids=around) == "its nodes form a cycle"
    assert of(nodes_truenodeids=nowhere).startswith("a way leads to a node that is none of the ")
    assert of(nodes_featureids=[5] * len(grown.nodes)) == "it looks at feature 5 of 2"
    assert of(post_transform="PROBIT").startswith("the post-transform 'PROBIT' is none of NONE")
    assert of(aggregate_function="MEDIAN").startswith("the aggregate function 'MEDIAN' is none of SUM")
    assert of(target_ids=[1] * len(grown.leaves)) == "a leaf is of target 1 to 1 of 1"
    assert of(nodes_modes=["BRANCH_X"] * len(grown.nodes)) == "the node modes BRANCH_X are unknown"
    strings = {**grown.by_names("class"), "classlabels_strings": ["a", "b"]}
    labelled = model("TreeEnsembleClassifier", [("float32", ["n", 2])], 2, "ai.onnx.ml", 3, **strings)
    assert refusal(labelled).endswith("convert the model with classes that are integers")


@pytest.mark.parametrize("size", [0, 1, 2, 50])
def test_distinct_places_of_a_forest(size: int):
    """In place of np.unique, which imports numpy.ma."""
    places = np.random.default_rng(size).integers(0, 20, size)
    values, firsts = np.unique(places, return_index=True)
    np.testing.assert_array_equal(trees._distinct(places), values)
    np.testing.assert_array_equal(trees._firsts(places), firsts)
