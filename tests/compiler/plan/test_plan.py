"""Plans as callers use them: every kind of input, outputs and workspaces of their own, threads; what does not fit is told."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.engines.reference import ENGINE as REFERENCE
from kernels_hub.compiler.engines.reference import ReferencePlan
from kernels_hub.compiler.errors import DimError, EngineError, EvaluateError, PlanError, ShapeError
from kernels_hub.compiler.plan.placement import lay_out
from kernels_hub.compiler.plan.selection import create_plans
from tests.compiler.plan.plan_engines import FailingEngine, PartEngine, only_engines
from tests.compiler.strategies import assert_same_outputs

RANDOM = np.random.default_rng(0)


def block():
    """Two inputs, two outputs, symbolic; a chain of ops that engines take turns at."""
    graph = Graph("block")
    x = graph.input("x", ("batch", 8))
    y = graph.input("y", ("batch", "width"))
    w = graph.parameter("w", (8, "width"), data=RANDOM.standard_normal((8, 3)).astype(np.float32))
    h = (x @ w).tanh()
    k = (h + y).exp()
    graph.output("sum", (k * h).tanh().sum(1))
    graph.output("k", k)
    return graph


def arrays(batch=4, width=3):
    return {
        "x": RANDOM.standard_normal((batch, 8)).astype(np.float32),
        "y": RANDOM.standard_normal((batch, width)).astype(np.float32),
    }


def tensors(given):
    return {name: torch.from_numpy(one.copy()) for name, one in given.items()}


def turns():
    return PartEngine("left", lambda op: op != "tanh", scratch=200), PartEngine("right", scratch=1000)


def build(graph, *engines):
    names = [one.name for one in engines]
    with only_engines(*engines):
        found = create_plans(graph, "cpu", rank=lambda *_: names)
        return next(one for one in found if one.preferred).build()


@pytest.fixture(params=["one engine", "several"])
def plan(request):
    if request.param == "one engine":
        return build(block(), PartEngine("whole", scratch=300))
    made = build(block(), *turns())
    assert len(made.segments) > 2
    return made


def test_what_goes_in_comes_out_in_kind(plan):
    given = arrays()
    expected = evaluate(block_with(plan), given)
    assert_same_outputs(plan.execute(given), expected)
    results = plan(*tensors(given).values())
    assert isinstance(results, tuple) and all(isinstance(one, torch.Tensor) for one in results)
    assert_same_outputs(numpy(dict(zip(expected, results, strict=True))), expected)
    again = plan(*tensors(given).values())
    assert all(
        torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(results, again, strict=True)
    )
    mixed = plan.execute({"y": given["y"], "x": torch.from_numpy(given["x"])})
    assert all(isinstance(one, torch.Tensor) for one in mixed.values())


class OnlyDLPack:
    """A tensor of another library."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **more):
        return self.tensor.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack_strides_and_gradients_are_taken(plan):
    given = arrays()
    expected = evaluate(block_with(plan), given)
    x, y = tensors(given).values()
    wide = torch.zeros(8, 2 * len(x))
    wide[:, ::2] = x.T
    assert_same_outputs(numpy(plan.execute([OnlyDLPack(x), OnlyDLPack(y)])), expected)
    assert_same_outputs(numpy(plan.execute([wide[:, ::2].T, y])), expected)
    grad = x.clone().requires_grad_()
    for _ in range(2):
        assert_same_outputs(numpy(plan.execute([grad, torch.nn.Parameter(y)])), expected)
    backwards = {"x": given["x"][::-1], "y": given["y"][::-1]}
    assert_same_outputs(plan.execute(backwards), evaluate(block_with(plan), backwards))


def test_conjugates_and_negatives_are_read_as_what_they_mean():
    graph = Graph("complex")
    z = graph.input("z", ("n",), "complex64")
    r = graph.input("r", ("n",))
    graph.output("z", z * z)
    graph.output("r", r + 1.0)
    plan = build(graph, PartEngine("whole"))
    z = torch.tensor([1 + 2j, 3 - 1j])
    for _ in range(2):
        squares, ones = plan(z.conj(), z.conj().imag)
        assert torch.equal(squares, (z.conj() * z.conj()).resolve_conj())
        assert torch.equal(ones, 1 - z.imag)


def test_outputs_of_the_caller_are_written_to(plan):
    given = arrays()
    expected = evaluate(block_with(plan), given)
    out = {"sum": torch.full((4,), 7.0), "k": torch.full((3, 4), 7.0).T}
    workspace = torch.empty(plan.workspace_size({"batch": 4, "width": 3}), dtype=torch.uint8)
    results = plan.execute(tensors(given), outputs=out, workspace=workspace)
    assert results["k"] is out["k"] and results["sum"] is out["sum"]
    assert_same_outputs(numpy(results), expected)
    array = {"sum": np.zeros(4, np.float32), "k": np.zeros((4, 3), np.float32)}
    plan.execute(given, outputs=array)
    assert_same_outputs(array, expected)
    assert_same_outputs(numpy(plan.execute(tensors(given), workspace=workspace)), expected)


def test_sizes_are_bound_and_contradictions_named(plan):
    assert plan.sizes((4, 8), (4, 3)) == {"batch": 4, "width": 3}
    for batch in (1, 5, 0, 4):
        given = arrays(batch)
        assert_same_outputs(plan.execute(given), evaluate(block_with(plan), given))
    with pytest.raises(
        ShapeError, match=r"block: input 'y' float32\[batch, width\] got \[5, 3\]: dim 0 is 5, but batch is 4"
    ):
        plan.execute({**arrays(), "y": arrays(5)["y"]})
    with pytest.raises(ShapeError, match=r"'x' float32\[batch, 8\] got \[4, 9\]: dim 1 is 9, expected 8"):
        plan.execute({**arrays(), "x": np.zeros((4, 9), np.float32)})
    with pytest.raises(ShapeError, match="rank 1, not 2"):
        plan(torch.zeros(8), torch.zeros(1, 3))


def test_sizes_are_solved_in_any_order():
    graph = Graph("order")
    graph.symbol("n", 2, 9)
    a = graph.input("a", ("n*m + k",))
    b = graph.input("b", ("2*n + 1", "k"))
    graph.output("s", a.sum() + b.sum() + graph.input("c", ("m",)).sum())
    plan = build(graph, PartEngine("whole"))
    assert plan.sizes((17,), (7, 5), (4,)) == {"n": 3, "k": 5, "m": 4}
    with pytest.raises(
        ShapeError, match=r"dim 0 is 18, but .* is 17 \(k = 5 by .*; m = 4 by .*; n = 3 by .*\)"
    ):
        plan.sizes((18,), (7, 5), (4,))
    with pytest.raises(ShapeError, match=r"dim 0 is 8, but no n makes"):
        plan.sizes((17,), (8, 5), (4,))
    with pytest.raises(DimError, match=r"n = 10 contradicts n in 2..9"):
        plan.sizes((45,), (21, 5), (4,))


WRONG = {
    "too few": (lambda x, y: (x,), "takes|has the inputs"),
    "too many": (lambda x, y: (x, y, y), "has the inputs"),
    "dtype": (lambda x, y: (x.double(), y), "input 'x' is of float64, expected float32"),
    "array of another dtype": (lambda x, y: (x.numpy().astype(np.int32), y), "'x' is of int32, expected float32"),
    "array of strings": (lambda x, y: (np.array(["a"]), y), "'x'"),
    "device": (lambda x, y: (x.to("meta"), y), "input 'x' is on meta, the plan runs on cpu"),
    "sparse": (lambda x, y: (x.to_sparse(), y), "'x' is a torch.sparse_coo tensor"),
    "a list": (lambda x, y: (x.tolist(), y), "'x' is of list; give a torch.Tensor"),
    "None": (lambda x, y: (x, None), "'y' is of NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_refused(plan, case):
    make, message = WRONG[case]
    x, y = tensors(arrays()).values()
    plan(x, y)
    with pytest.raises(PlanError, match=message) as caught:
        plan(*make(x, y))
    assert "block" in str(caught.value)


def test_names_that_lack_or_are_unknown(plan):
    with pytest.raises(PlanError, match=r"missing are \['y'\], unknown \['z'\]"):
        plan.execute({"x": arrays()["x"], "z": arrays()["x"]})
    with pytest.raises(PlanError, match=r"outputs .* missing are \['k'\]"):
        plan.execute(arrays(), outputs={"sum": np.zeros(4, np.float32)})


def test_a_fake_tensor_is_refused(plan):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(4, 8)
    with pytest.raises(PlanError, match="FakeTensor"):
        plan(fake, torch.zeros(4, 3))


def overlapping():
    memory = torch.zeros(64)
    return {
        "one upon the other": {"sum": memory[:4], "k": memory[2:14].view(4, 3)},
        "an input": {"sum": torch.zeros(4), "k": "x"},
        "itself": {"sum": torch.zeros(1).expand(4), "k": torch.zeros(4, 3)},
        "interleaved upon itself": {"sum": torch.zeros(4), "k": memory.as_strided((4, 3), (2, 1))},
    }


@pytest.mark.parametrize("case", overlapping())
def test_overlap_is_refused(plan, case):
    given = tensors(arrays())
    out = overlapping()[case]
    if case == "an input":
        out["k"] = given["x"].view(-1)[:12].view(4, 3)
    with pytest.raises(PlanError, match="overlap in memory|share memory") as caught:
        plan.execute(given, outputs=out)
    assert "output" in str(caught.value)


def test_wrong_outputs_and_workspaces_are_refused(plan):
    given = tensors(arrays())
    good = {"sum": torch.zeros(4), "k": torch.zeros(4, 3)}
    needed = plan.workspace_size({"batch": 4, "width": 3})
    assert needed >= 300
    bad = [
        ({"outputs": {**good, "k": torch.zeros(3, 4)}}, r"output 'k' has shape \[3, 4\], expected \[4, 3\]"),
        ({"outputs": {**good, "k": torch.zeros(4, 3).half()}}, "output 'k' is of float16"),
        ({"outputs": {**good, "k": torch.zeros(4, 3, device="meta")}}, "output 'k' is on meta"),
        ({"outputs": {**good, "k": read_only()}}, "read-only"),
        ({"outputs": {**good, "k": np.zeros((3, 4), np.float32)[::-1].T}}, "cannot write to"),
        (
            {"workspace": torch.empty(needed - 1, dtype=torch.uint8)},
            f"has {needed - 1} bytes, and {needed} are needed",
        ),
        ({"workspace": torch.empty(needed, dtype=torch.int8)}, "must be a tensor of uint8"),
        ({"workspace": torch.empty(needed, dtype=torch.uint8, device="meta")}, "workspace is on meta"),
        ({"workspace": torch.empty(needed + 64, dtype=torch.uint8)[1:]}, "multiple of 64"),
    ]
    for more, message in bad:
        with pytest.raises(PlanError, match=message):
            plan.execute(given, **more)
    with pytest.raises(PlanError, match="depends on batch, width"):
        plan.workspace_size()


def read_only():
    array = np.zeros((4, 3), np.float32)
    array.flags.writeable = False
    return array


def test_arrays_of_any_layout_are_inputs(plan):
    given = arrays(4)
    expected = evaluate(block_with(plan), given)
    x, y = given.values()
    column, read = np.asfortranarray(x), x.copy()
    read.flags.writeable = False
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    swapped = x.astype(">f4")
    wide = np.zeros((8, 16), np.float32)
    wide[::2, ::2] = x
    for _ in range(2):
        for one in (x, column, read, odd, swapped, wide[::2, ::2], x[::-1].copy()[::-1]):
            assert np.array_equal(one, x)
            results = plan(one, y)
            assert all(type(array) is np.ndarray for array in results)
            assert_same_outputs(dict(zip(expected, results, strict=True)), expected)
            by_name = plan.execute({"y": y, "x": one})
            assert all(type(array) is np.ndarray for array in by_name.values())
            assert_same_outputs(by_name, expected)
    narrow = x.astype(np.float64)
    with pytest.raises(PlanError, match="float64, expected float32"):
        plan(narrow, y)


def test_arrays_of_known_shapes_are_checked_once(plan, monkeypatch):
    given = arrays(4)
    expected = evaluate(block_with(plan), given)
    plan.execute(given)
    monkeypatch.setattr(plan, "_check", None)
    assert_same_outputs(plan.execute(given), expected)
    assert_same_outputs(plan.execute(list(given.values())), expected)
    for other in (
        arrays(5),
        {**given, "x": given["x"].astype(np.float64)},
        {**given, "x": given["x"][:, ::-1]},
    ):
        with pytest.raises(TypeError):  # these are checked
            plan.execute(other)


def test_small_results_are_arrays_that_numpy_allocated(plan):
    given = arrays(4)
    expected = evaluate(block_with(plan), given)
    plan.execute(given)
    first, second = plan(*given.values()), plan(*given.values())
    for results in (first, second):
        assert_same_outputs(dict(zip(expected, results, strict=True)), expected)
    if len(plan.segments) == 1:
        assert all(array.flags.owndata for array in (*first, *second))
    assert not any(np.shares_memory(one, other) for one, other in zip(first, second, strict=True))


def test_threads_have_memory_of_their_own(plan):
    cases = [arrays(batch) for batch in (1, 3, 3, 6)]
    expected = [evaluate(block_with(plan), one) for one in cases]
    failures = []

    def work(number):
        try:
            x, y = tensors(cases[number]).values()
            for _ in range(60):
                results = plan(x, y)
                assert_same_outputs(numpy(dict(zip(("sum", "k"), results, strict=True))), expected[number])
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures


def test_outputs_that_are_inputs_or_the_same_are_copies():
    graph = Graph("pass")
    x, y = graph.input("x", ("n",)), graph.input("y", ("n",))
    z = x + y
    for name, value in {
        "a": x,
        "b": z,
        "c": z,
        "d": graph.constant([1.0, 2.0]),
        "e": z.tanh(),
        "f": y,
    }.items():
        graph.output(name, value)
    given = {"x": np.ones(3, np.float32), "y": np.arange(3, dtype=np.float32)}
    for engines in (
        turns(),
        (REFERENCE,),
        (PartEngine("whole"),),
        (PartEngine("l", lambda op: op != "tanh"), REFERENCE),
    ):
        plan = build(graph, *engines)
        results = plan.execute(tensors(given))
        assert_same_outputs(numpy(results), evaluate(graph, given))
        spans = {one.untyped_storage().data_ptr() for one in results.values()}
        assert len(spans) == len(results)
        for one in results.values():
            one.fill_(9)
        assert_same_outputs(numpy(plan.execute(tensors(given))), evaluate(graph, given))


def test_a_graph_without_ops_is_a_plan_without_segments():
    graph = Graph("nothing")
    x = graph.input("x", ("n",))
    graph.output("a", x)
    plan = create_plans(graph, "cpu", rank=lambda *_: ["reference"])[0].build()
    x = torch.ones(3)
    assert torch.equal(plan(x), x) and plan(x).data_ptr() != x.data_ptr()


def grown():
    """Sizes that only the data tell, before, in and after other work."""
    graph = Graph("grown")
    x = graph.input("x", ("n",))
    places = graph.apply("nonzero", x.tanh().ne(x.like(0.0)), count=graph.symbol("found"))
    picked = x.gather(places.reshape(-1), 0)
    graph.output("picked", picked.exp())
    graph.output("count", graph.size("found"))
    graph.output("twice", (x + x).tanh())
    return graph


@pytest.mark.parametrize("growing", [True, False])
def test_sizes_that_the_data_tell(growing):
    graph = grown()
    plan = build(graph, PartEngine("part", lambda op: op != "nonzero" and op != "gather"), REFERENCE)
    assert len(plan.segments) > 1
    for given in (
        {"x": np.array([0, 1, 0, 2], np.float32)},
        {"x": np.zeros(2, np.float32)},
        {"x": np.ones(5, np.float32)},
    ):
        expected = evaluate(graph, given)
        assert_same_outputs(plan.execute(given), expected)
        if growing:
            out = {name: np.zeros(one.shape, one.dtype) for name, one in expected.items()}
            plan.execute(given, outputs=out)
            assert_same_outputs(out, expected)


def test_outputs_of_another_size_than_the_data_make_them():
    plan = build(grown(), REFERENCE)
    out = {
        "picked": np.zeros(3, np.float32),
        "count": np.zeros((), np.int64),
        "twice": np.zeros(2, np.float32),
    }
    with pytest.raises(PlanError, match=r"output 'picked' has shape \[3\], the data make it \[1\]"):
        plan.execute({"x": np.array([0, 1], np.float32)}, outputs=out)


def test_lifetimes_share_the_arena():
    graph = Graph("chain")
    x = graph.input("x", ("n",))
    for _ in range(6):
        x = x.tanh().exp()
    graph.output("y", x)
    plan = build(graph, PartEngine("left", lambda op: op != "tanh"), PartEngine("right"))
    assert len(plan.segments) == 12
    assert plan.workspace_size({"n": 1000}) <= 2 * 4032
    layout = lay_out(plan.program, {"n": 1000})
    live = [
        [slot for slot in (*one.inputs, *one.outputs) if slot in layout.offsets]
        for one in plan.program.segments
    ]
    for slots in live:
        places = sorted(layout.offsets[slot] for slot in slots)
        assert all(b - a >= 4000 for a, b in itertools.pairwise(places))


class Computed(PartEngine):
    """Its plans allocate what they give; `spoil(results, inputs)` says what."""

    def __init__(self, name, spoil, **more):
        super().__init__(name, **more)
        self.spoil = spoil

    def compile(self, graph, device, knobs):
        plan = super().compile(graph, device, knobs)
        plan.computes = True
        plan.compute = lambda inputs, *_: self.spoil(ReferencePlan.compute(plan, inputs), inputs)
        return plan


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda results, _: results[:1], "computed 1 outputs, expected 2"),
        (lambda results, _: [results[0], results[1].T], r"'k' came out as \[3, 4\], expected \(4, 3\)"),
        (lambda results, _: [results[0].double(), results[1]], "'sum' is torch.float64"),
        (lambda results, inputs: [results[0], inputs[1]], "'k' lies in the memory of an input"),
        (
            lambda results, _: [results[1].view(-1)[:4], results[1]],
            "'k' lies in the memory of an input, or of another",
        ),
    ],
)
def test_what_an_engine_allocates_is_looked_at(spoil, message):
    good = build(block(), Computed("good", lambda results, _: results))
    assert_same_outputs(good.execute(given := arrays()), evaluate(block_with(good), given))
    with pytest.raises(EngineError, match=f"graph block: engine bad failed: ValueError: .*{message}"):
        build(block(), Computed("bad", spoil))(*tensors(arrays()).values())


@pytest.mark.parametrize("size", [-1, None, "many", ZeroDivisionError()])
def test_a_workspace_that_makes_no_sense(size):
    class Sizeless(PartEngine):
        def compile(self, graph, device, knobs):
            plan = super().compile(graph, device, knobs)

            def tell(_):
                if isinstance(size, Exception):
                    raise size
                return size

            plan.workspace_size = tell
            return plan

    plan = build(block(), Sizeless("sizeless"))
    with pytest.raises(EngineError, match="graph block: engine sizeless failed to tell its workspace"):
        plan.workspace_size({"batch": 4, "width": 3})


@pytest.mark.parametrize("error", [RuntimeError("it broke"), ZeroDivisionError(), KeyError("x")])
def test_what_an_engine_raises_names_graph_and_engine(error):
    plan = build(block(), FailingEngine("broken", "execute", error))
    with pytest.raises(EngineError, match="graph block: engine broken failed: ") as caught:
        plan.execute(arrays())
    assert caught.value.__cause__ is error


def test_out_of_memory_says_how_much_is_wanted():
    plan = build(
        block(), FailingEngine("hungry", "execute", torch.OutOfMemoryError("no more"), scratch=12345)
    )
    with pytest.raises(
        EngineError, match="engine hungry ran out of memory on cpu; .* 12345 bytes for .*batch=4"
    ) as caught:
        plan.execute(arrays())
    assert caught.value.memory


def test_data_that_an_op_refuses_are_told_as_such():
    graph = Graph("index")
    table = graph.constant(np.zeros((4, 2), np.float32))
    graph.output("y", table.gather(graph.input("i", ("n",), "int64"), 0))
    plan = build(graph, PartEngine("whole"))
    with pytest.raises(EvaluateError, match="index"):
        plan(torch.tensor([9]))
    assert plan(torch.tensor([1])).shape == (1, 2)


def test_calls_forget_the_oldest_shapes(plan):
    for batch in range(80, 0, -1):
        plan.execute(tensors(arrays(batch)))
    assert len(plan._calls.results) <= 32 and len(plan._known) <= 32 * 4
    *_, fourth, _, _, _ = plan._calls.results
    if not plan.program.direct:  # of one segment the engine has the arena
        assert 64 < plan._arenas.cpu.memory.numel() <= fourth.arena_bytes
    assert_same_outputs(numpy(plan.execute(tensors(given := arrays(1)))), evaluate(block_with(plan), given))


def block_with(plan):
    """The graph again, with the weights of the plan's engine."""
    (found, *_) = [
        one
        for one in (getattr(segment.plan, "plan", segment.plan) for segment in plan.segments)
        if "w" in one._graph.parameters
    ]
    graph = block()
    graph.weights["w"] = found._graph.weights["w"]
    return graph


def numpy(results):
    return {name: one.numpy() for name, one in results.items()}
