"""Packed weights: never stale, packed once, freed with their weight, and right when the originals are freed."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.tolerances import assert_close
from tests.warm_process import run_script

LINEAR: ModuleType = import_kernel(source_variant(bundled_folder() / "linear", "cpu"))
MLP: ModuleType = import_kernel(source_variant(bundled_folder() / "mlp", "cpu"))
WEIGHTS = LINEAR.weights
CACHE, HELD = WEIGHTS.cache, WEIGHTS.held
FORWARD = LINEAR.layers.Linear.forward

K, N = 192, 320
X = torch.randn(64, K, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def pack_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack for smaller products than pays, so that shapes here are small; the smallest stay on F.linear."""
    monkeypatch.setattr(
        sys.modules[LINEAR.__name__ + ".packing"].products,
        "pays",
        lambda x, weight: weight.dim() == 2 and x.numel() * weight.shape[0] >= 16_384,
    )


PAYS = sys.modules[LINEAR.__name__ + ".packing"].products.pays


def make(dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(K, N, dtype=dtype)


def run(module: nn.Module, x: torch.Tensor = X) -> torch.Tensor:
    with torch.no_grad():
        return FORWARD(module, x.to(module.weight.dtype))


def check(module: nn.Linear, x: torch.Tensor = X) -> None:
    """The layer agrees with what F.linear makes of the module's weight as it is now."""
    weight = module.weight.detach().clone().double()
    bias = None if module.bias is None else module.bias.detach().double()
    assert_close(run(module, x), F.linear(x.to(module.weight.dtype).double(), weight, bias))


def packed(module: nn.Linear) -> bool:
    entry = CACHE.entry_of(module.weight)
    return entry is not None and entry.packed is not None


def test_a_weight_is_packed_once_and_its_copy_used() -> None:
    module = make()
    before = CACHE.number_of_packs()
    for _ in range(3):
        check(module)
    assert packed(module)
    assert CACHE.number_of_packs() == before + 1
    assert WEIGHTS.packed_nbytes(module) >= module.weight.nbytes


def test_the_copy_is_freed_with_its_weight() -> None:
    module = make()
    run(module)
    copy_of = weakref.ref(CACHE.packed_copy(module.weight))
    key = id(module.weight)
    gc.disable()  # promptly, not at some later collection
    try:
        del module
        assert key not in CACHE._ENTRIES
        assert copy_of() is None
    finally:
        gc.enable()


def test_repositories_share_one_copy() -> None:
    assert MLP.weights.cache is CACHE
    assert MLP.weights.held.PackedWeight is HELD.PackedWeight


def _step(module: nn.Linear) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(X).square().mean().backward()
    optimizer.step()


def _in_place(module: nn.Linear) -> None:
    with torch.no_grad():
        module.weight[3, 5] += 1.0


def _data(module: nn.Linear) -> None:
    module.weight.data = torch.randn(N, K)


def _data_in_place(module: nn.Linear) -> None:  # as PEFT merges a LoRA: no version is counted
    version = module.weight._version
    module.weight.data += torch.randn(N, 4) @ torch.randn(4, K)
    assert module.weight._version == version


def _load(module: nn.Linear) -> None:
    module.load_state_dict({"weight": torch.randn(N, K), "bias": torch.randn(N)})


def _load_assign(module: nn.Linear) -> None:
    module.load_state_dict({"weight": torch.randn(N, K), "bias": torch.randn(N)}, assign=True)


def _replace(module: nn.Linear) -> None:
    module.weight = nn.Parameter(torch.randn(N, K))


def _view_of_flat(module: nn.Linear) -> None:  # as FSDP1 does: a plain tensor in the parameter's place
    flat = torch.randn(N * K + 7)
    del module.weight
    module.weight = flat[7:].view(N, K)


def _other_storage_same_version(module: nn.Linear) -> None:  # as FSDP2's unsharding does
    with torch.autograd._unsafe_preserve_version_counter(module.weight), torch.no_grad():
        module.weight.copy_(torch.randn(N, K))


def _dtype(module: nn.Linear) -> None:
    module.to(torch.bfloat16)


def _narrow(module: nn.Linear) -> None:
    module.weight.data = module.weight.data[: N // 2]
    module.bias.data = module.bias.data[: N // 2]


EDITS: dict[str, Callable[[nn.Linear], None]] = {
    "optimizer step": _step,
    "one element in place": _in_place,
    ".data assigned": _data,
    ".data edited in place": _data_in_place,
    "load_state_dict": _load,
    "load_state_dict(assign=True)": _load_assign,
    "another parameter": _replace,
    "a view of a flat tensor": _view_of_flat,
    "same version": _other_storage_same_version,
    "another dtype": _dtype,
    "another shape at the same address": _narrow,
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_edits_are_noticed(edit: Callable[[nn.Linear], None]) -> None:
    module = make()
    check(module)
    before = run(module)
    edit(module)
    check(module)
    after = run(module)
    assert after.shape != before.shape or not torch.allclose(after.float(), before, atol=1e-3)
    check(module)


def test_a_transposed_square_at_the_same_address_is_noticed() -> None:
    module = nn.Linear(256, 256)
    x = torch.randn(64, 256)
    check(module, x)
    module.weight.data = module.weight.data.t()
    check(module, x)


def test_an_inference_tensor_is_checked_by_its_elements() -> None:
    with torch.inference_mode():
        module = make()
        assert module.weight.is_inference()
        assert_close(FORWARD(module, X), module(X).double())
        module.weight.mul_(2.0)
        assert_close(FORWARD(module, X), module(X).double())
    assert_close(run(module), F.linear(X.double(), module.weight.double(), module.bias.double()))


def test_a_copy_packed_under_inference_mode_serves_outside_it() -> None:
    module = make()
    with torch.inference_mode():
        FORWARD(module, X)
    assert not CACHE.packed_copy(module.weight).is_inference()


def test_nan_in_the_weight_is_packed_once() -> None:
    module = make()
    with torch.no_grad():
        module.weight.fill_(float("nan"))
    before = CACHE.number_of_packs()
    assert run(module).isnan().all()
    run(module)
    assert CACHE.number_of_packs() == before + 1


def test_an_edit_of_one_element_is_found_when_asked_for() -> None:
    """What PyTorch does not count, and no call compares at once."""
    module = make()
    run(module)
    module.weight.data[0, 100] += 100.0
    assert packed(module)
    WEIGHTS.refresh(module)
    assert packed(module)
    check(module)


def test_small_products_are_left_to_pytorch() -> None:
    def pays(rows: int, size: int, dtype: torch.dtype = torch.float32) -> bool:
        return PAYS(torch.empty(rows, size, dtype=dtype), torch.empty(size, size, dtype=dtype))

    assert pays(1, 1024) and pays(128, 1024)
    assert not pays(1, 64) and not pays(128, 64) and pays(4096, 64)
    assert pays(1, 1024, torch.bfloat16) == (torch.bfloat16 in CACHE.dtypes())
    assert not pays(128, 64, torch.bfloat16)
    assert not PAYS(torch.empty(4096, 4096), torch.empty(4096))


def test_threads_pack_once() -> None:
    module = make()
    before, barrier, results = CACHE.number_of_packs(), threading.Barrier(8), []

    def work() -> None:
        barrier.wait()
        results.append(run(module))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CACHE.number_of_packs() == before + 1
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_tied_weight_is_packed_once() -> None:
    first, second = make(), make()
    second.weight = first.weight
    before = CACHE.number_of_packs()
    check(first)
    check(second)
    assert CACHE.number_of_packs() == before + 1


class Subclass(torch.Tensor):
    pass


NOT_PACKED = {
    "float64": lambda: nn.Parameter(torch.randn(N, K, dtype=torch.float64)),
    "a subclass": lambda: nn.Parameter(torch.randn(N, K).as_subclass(Subclass)),
    "transposed": lambda: nn.Parameter(torch.randn(K, N).t()),
    "plain": lambda: torch.randn(N, K),
    "mostly padding": lambda: nn.Parameter(torch.randn(3, 4097)),
    "no rows": lambda: nn.Parameter(torch.randn(0, K)),
    "meta": lambda: nn.Parameter(torch.empty(N, K, device="meta")),
}


@pytest.mark.parametrize("build", NOT_PACKED.values(), ids=NOT_PACKED.keys())
def test_what_is_not_packed(build: Callable[[], torch.Tensor]) -> None:
    weight = build()
    assert CACHE.packed_copy(weight) is None
    x = torch.randn(64, weight.shape[1], dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        result, expected = LINEAR.linear(x, weight), F.linear(x, weight)
    assert result.shape == expected.shape and result.device == expected.device
    if weight.device.type != "meta":
        assert_close(result.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor).double())


WITHOUT_GUARD = """
import torch
from torch import nn
from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
cache = import_kernel(source_variant(bundled_folder() / "linear", "cpu")).weights.cache
weight = nn.Parameter(torch.randn(320, 192))
cache.packed_copy(weight)
weight.data += 1
print(cache.entry_of(weight) is not None)
with torch.no_grad():
    weight += 1
print(cache.entry_of(weight) is not None)
"""


def test_the_guard_can_be_switched_off() -> None:
    environment = os.environ | {"KERNELS_HUB_PACKED_GUARD": "0"}
    done = run_script(WITHOUT_GUARD, env=environment)
    assert done.stdout.split() == ["True", "False"]


# -- prepare, free, restore ------------------------------------------------------------------------


@pytest.fixture
def freed() -> nn.Linear:
    module = make()
    WEIGHTS.free_originals(module)
    assert isinstance(module.weight, HELD.PackedWeight)
    return module


ORIGINAL = make().weight.detach().clone()


def test_prepare_packs_before_the_first_call() -> None:
    module = nn.Linear(512, 512)
    WEIGHTS.prepare(module)
    before = CACHE.number_of_packs()
    assert WEIGHTS.packed_nbytes(module) >= module.weight.nbytes
    run(module, torch.randn(64, 512))
    assert CACHE.number_of_packs() == before
    WEIGHTS.release(module)
    assert WEIGHTS.packed_nbytes(module) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(320, 192), (321, 193), (1000, 999)])
def test_free_and_restore_keep_the_bits(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    module = nn.Linear(shape[1], shape[0], dtype=dtype)
    with torch.no_grad():
        module.weight[0, :3] = torch.tensor([-0.0, float("nan"), 1e-42])
    module.weight.requires_grad_(shape[0] != 321)
    bits, state = torch.int32 if dtype is torch.float32 else torch.int16, module.weight.requires_grad
    original = module.weight.detach().clone()
    gone = weakref.ref(module.weight)
    WEIGHTS.free_originals(module)
    if dtype not in CACHE.dtypes():
        assert type(module.weight) is nn.Parameter
        return
    assert gone() is None
    assert isinstance(module.weight, nn.Parameter) and not module.weight.requires_grad
    assert (module.weight.shape, module.weight.dtype, module.weight.device) == (
        original.shape,
        dtype,
        original.device,
    )
    # What is held beyond the weight's own bytes is oneDNN's padding.
    assert WEIGHTS.packed_nbytes(module) <= (0.4 if shape[0] == 321 else 0.05) * original.nbytes
    WEIGHTS.restore_originals(module)
    assert type(module.weight) is nn.Parameter and module.weight.requires_grad == state
    assert torch.equal(module.weight.detach().view(bits), original.view(bits))


def test_a_freed_layer_computes(freed: nn.Linear) -> None:
    expected = F.linear(X.double(), ORIGINAL.double(), freed.bias.double())
    assert_close(run(freed), expected)
    with torch.inference_mode():
        assert_close(FORWARD(freed, X), expected)
    assert_close(run(freed, X[:1]), expected[:1])
    assert freed.weight.holder.truth() is None


def test_a_freed_layer_under_grad_autocast_and_other_dtypes(freed: nn.Linear) -> None:
    x = X.clone().requires_grad_()
    FORWARD(freed, x).square().sum().backward()
    y = X.double().requires_grad_()
    F.linear(y, ORIGINAL.double(), freed.bias.double()).square().sum().backward()
    assert_close(x.grad, y.grad)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = FORWARD(freed, X)
        assert result.dtype is torch.bfloat16
    with pytest.raises(RuntimeError, match="dtype"), torch.no_grad():
        FORWARD(freed, X.double())
    assert freed.weight.holder.truth() is None


def test_the_original_forward_runs_on_a_freed_weight(freed: nn.Linear) -> None:
    with torch.no_grad():
        assert_close(freed(X), F.linear(X.double(), ORIGINAL.double(), freed.bias.double()))


def _operations() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "sum": lambda w: w.sum(),
        "row": lambda w: w[3],
        "transpose": lambda w: w.t() @ w,
        "to": lambda w: w.to(torch.float64),
        "norm": lambda w: w.norm(),
        "stack": lambda w: torch.stack([w, w]),
        "embedding": lambda w: F.embedding(torch.tensor([1, 5]), w),
        "numpy": lambda w: torch.from_numpy(w.detach().numpy()),
        "max": lambda w: w.max(dim=1).values,
    }


@pytest.mark.parametrize("operation", _operations().values(), ids=_operations().keys())
def test_operations_on_a_freed_weight(
    freed: nn.Linear, operation: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with torch.no_grad():
        assert torch.equal(operation(freed.weight), operation(ORIGINAL.clone()))
    check(freed)


def _writes() -> dict[str, Callable[[torch.Tensor], object]]:
    return {
        "copy_": lambda w: w.copy_(torch.ones(N, K)),
        "mul_": lambda w: w.mul_(2.0),
        "add_ itself": lambda w: w.add_(w),
        ".data": lambda w: w.data.add_(1.0),
        "detach": lambda w: w.detach().add_(1.0),
        "element": lambda w: w.__setitem__((3, 5), 7.0),
        "row of .data": lambda w: w.data[2].fill_(3.0),
        "transposed view": lambda w: w.t().mul_(3.0),
        "foreach": lambda w: torch._foreach_add_([w], 1.0),
        "init": lambda w: nn.init.constant_(w, 0.25),
    }


@pytest.mark.parametrize("write", _writes().values(), ids=_writes().keys())
def test_writes_to_a_freed_weight(freed: nn.Linear, write: Callable[[torch.Tensor], object]) -> None:
    expected = ORIGINAL.clone()
    with torch.no_grad():
        run(freed)
        write(freed.weight)
        write(expected)
    check_weight(freed, expected)
    with torch.no_grad():
        write(freed.weight)
        write(expected)
    check_weight(freed, expected)


def check_weight(module: nn.Linear, expected: torch.Tensor) -> None:
    assert_close(run(module), F.linear(X.double(), expected.double(), module.bias.detach().double()))
    with torch.no_grad():
        assert torch.equal(module.weight + 0, expected)


def test_writes_that_change_the_shape_are_refused(freed: nn.Linear) -> None:
    with pytest.raises(RuntimeError), torch.no_grad():
        freed.weight.resize_(2, 3)
    check_weight(freed, ORIGINAL)


def test_an_in_place_operation_returns_the_weight(freed: nn.Linear) -> None:
    with torch.no_grad():
        assert freed.weight.mul_(2.0) is freed.weight


@pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated"
)  # safetensors asks so, once another way fails
def test_state_dict_and_saving(freed: nn.Linear, tmp_path) -> None:
    state = freed.state_dict()
    assert list(state) == ["weight", "bias"]
    other = make()
    with torch.no_grad():
        other.weight.zero_()
    other.load_state_dict(state)
    assert torch.equal(other.weight, ORIGINAL)

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)["weight"]
    assert type(loaded) is torch.Tensor and torch.equal(loaded, ORIGINAL)

    safetensors.torch.save_file({"weight": state["weight"]}, tmp_path / "w.safetensors")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "w.safetensors")["weight"], ORIGINAL)
    check_weight(freed, ORIGINAL)
    WEIGHTS.free_originals(freed)
    check_weight(freed, ORIGINAL)


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_into_a_freed_module(freed: nn.Linear, assign: bool) -> None:
    state = {"weight": torch.randn(N, K), "bias": torch.randn(N)}
    freed.load_state_dict(state, assign=assign)
    check_weight(freed, state["weight"])


def test_deepcopy_and_pickle(freed: nn.Linear) -> None:
    twin = copy.deepcopy(freed)
    assert isinstance(twin.weight, HELD.PackedWeight) and isinstance(twin.weight, nn.Parameter)
    with torch.no_grad():
        twin.weight.mul_(2.0)
    check_weight(twin, ORIGINAL * 2)
    check_weight(freed, ORIGINAL)
    unpickled = pickle.loads(pickle.dumps(freed))
    assert type(unpickled.weight) is nn.Parameter and unpickled.weight.requires_grad
    check_weight(unpickled, ORIGINAL)


@pytest.mark.parametrize(
    "move",
    [lambda m: m.to("cpu"), lambda m: m.float(), lambda m: m.eval(), lambda m: m.requires_grad_(False)],
)
def test_moves_that_change_nothing(freed: nn.Linear, move: Callable[[nn.Module], nn.Module]) -> None:
    check_weight(move(freed), ORIGINAL)


def test_another_dtype_makes_a_plain_parameter(freed: nn.Linear) -> None:
    freed.to(torch.float64)
    assert type(freed.weight) is nn.Parameter and freed.weight.requires_grad
    assert torch.equal(freed.weight, ORIGINAL.double())
    with torch.no_grad():
        assert_close(FORWARD(freed, X.double()), F.linear(X.double(), ORIGINAL.double(), freed.bias))


def test_assigned_data_makes_a_plain_parameter(freed: nn.Linear) -> None:
    before = freed.weight
    freed.weight.data = torch.ones(N, K)
    assert freed.weight is before and type(before) is nn.Parameter
    check_weight(freed, torch.ones(N, K))


def test_views_that_negate_are_not_packed() -> None:
    module = make().requires_grad_(False)
    module.weight = nn.Parameter(torch._neg_view(module.weight.detach()), requires_grad=False)
    WEIGHTS.prepare(module)
    WEIGHTS.free_originals(module)
    assert type(module.weight) is nn.Parameter and WEIGHTS.packed_nbytes(module) == 0
    check(module)


def test_tied_weights_are_freed_once_and_restored_as_one() -> None:
    first, second = make(), make()
    second.weight = first.weight
    gone = weakref.ref(first.weight)
    WEIGHTS.free_originals(first)
    assert gone() is not None
    WEIGHTS.free_originals(second)
    assert first.weight is second.weight and gone() is None
    check_weight(first, ORIGINAL)
    with torch.no_grad():
        first.weight.mul_(2.0)
    check_weight(second, ORIGINAL * 2)
    WEIGHTS.restore_originals(first)
    WEIGHTS.restore_originals(second)
    assert type(first.weight) is nn.Parameter and first.weight is second.weight
    assert torch.equal(first.weight, ORIGINAL * 2) and first.weight.requires_grad


def test_a_weight_that_an_embedding_shares_stays_shared() -> None:
    head, embedding = make(), nn.Embedding(N, K)
    embedding.weight = head.weight
    original = head.weight
    WEIGHTS.free_originals(head)
    with torch.no_grad():
        embedding.weight[3] += 1.0
    check_weight(head, original.detach())
    with torch.no_grad():
        head.weight.mul_(3.0)
    check_weight(head, original.detach())
    assert torch.equal(embedding.weight, head.weight + 0)
    WEIGHTS.restore_originals(head)
    assert head.weight is original


def test_freed_weights_under_torch_compile(freed: nn.Linear) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = freed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return FORWARD(self.linear, x) * 2

    block = torch.compile(Block(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(block(X), 2 * F.linear(X.double(), ORIGINAL.double(), freed.bias.double()))
        assert freed.weight.holder.truth() is None
        freed.weight.mul_(2.0)
        assert_close(block(X), 2 * F.linear(X.double(), 2 * ORIGINAL.double(), freed.bias.double()))


def test_compiled_code_finds_the_packed_copy() -> None:
    module = make()
    compiled = torch.compile(lambda x: FORWARD(module, x), backend="aot_eager", fullgraph=True)
    before = CACHE.number_of_packs()
    with torch.no_grad():
        for _ in range(3):
            assert_close(compiled(X), F.linear(X.double(), module.weight.double(), module.bias.double()))
    assert CACHE.number_of_packs() == before + 1
