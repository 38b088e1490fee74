"""What `compile` is asked of engines: which, by name or id; which not; knobs; how large a workspace may be."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from kernels_hub.compiler import CompilerError, Graph, compile
from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import engine_id
from kernels_hub.compiler.errors import EngineError


def chain(rows=64):
    """Two products, so that something lies between kernels."""
    graph = Graph("chain")
    x = graph.input("x", (rows, 64))
    weight = graph.constant(np.eye(64, dtype=np.float32) * 2)
    graph.output("y", (x @ weight).softmax() @ weight)
    return graph


@pytest.mark.parametrize("engines", [("library",), "library", (engine_id("library"),), engine_id("library")])
def test_engines_by_name_and_id(engines):
    run = compile(chain(), "cpu", engines=engines)
    assert run.plan.engines == ("library",)


def test_engines_are_denied_by_id():
    run = compile(chain(), "cpu", exclude_engines=(engine_id("cpp"), "reference"))
    assert set(run.plan.engines) == {"library"}
    assert not {"cpp", "reference"} & {one.engine for one in run.candidates}


def test_an_unknown_id_lists_the_known_ones():
    with pytest.raises(
        EngineError, match=rf"no engine has the id 12; there are .*{engine_id('library')} \(library\)"
    ):
        compile(chain(), "cpu", engines=(12,))
    with pytest.raises(TypeError, match="by its name or its id"):
        compile(chain(), "cpu", engines=(1.5,))


def test_knobs_reach_the_engine():
    run = compile(
        chain(), "cpu", engines=("cpp",), knobs={engine_id("cpp"): {"layout": "rows", "grain": 4096}}
    )
    (segment,) = run.plan.segments
    assert segment.knobs == {"layout": "rows", "grain": 4096}
    with pytest.raises(EngineError, match="no choice|layout"):
        compile(chain(), "cpu", engines=("cpp",), knobs={"cpp": {"layout": "upside down"}})
    with pytest.raises(CompilerError, match="give these, or that"):
        compile(chain(), "cpu", knobs={"cpp": {"grain": 4096}}, heuristic="benchmark")


@pytest.mark.parametrize("rows", [64, "rows"])
def test_a_workspace_is_no_larger_than_allowed(rows):
    x = np.random.default_rng(0).random((64, 64), dtype=np.float32)
    free = compile(chain(rows), "cpu")
    expected = free(x)
    needed = free.plan.workspace_size({"rows": 64})
    assert free.plan.engines == ("cpp",) and needed > 10
    limited = compile(chain(rows), "cpu", workspace_limit=10)
    np.testing.assert_allclose(limited(x), expected, rtol=1e-5)
    assert limited.plan.workspace_size() <= 10 and "cpp" not in limited.plan.engines
    assert any(f"workspace of {needed} bytes, more than 10" in one.reason for one in limited.candidates)
    enough = compile(chain(rows), "cpu", workspace_limit=needed)
    enough(x)
    assert enough.plan.engines == ("cpp",)
    with pytest.raises(EngineError, match="more than 10"):
        compile(chain(rows), "cpu", engines=("cpp",), workspace_limit=10)(x)


def test_a_bundled_engine_is_asked_for_without_importing_plugins(tmp_path):
    marker = tmp_path / "imported"
    (tmp_path / "hostile.py").write_text(f"open({str(marker)!r}, 'w')\nimport os\nos._exit(3)\n")
    code = (
        "import numpy as np\n"
        "from kernels_hub.compiler import Graph, compile\n"
        "graph = Graph(); graph.output('y', graph.input('x', (2,)) * 2.0)\n"
        "print(compile(graph, 'cpu', engines=('library',))(np.ones(2, np.float32)))\n"
    )
    environment = {**__import__("os").environ, registry.PATH_VARIABLE: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[2. 2.]" and not marker.exists()
