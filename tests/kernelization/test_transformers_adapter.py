"""`use_kernels=True` of transformers: the numbers, tokens and kernels of our own `kernelize`, and nothing faked."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.warm_process import run_script

transformers = pytest.importorskip("transformers", reason="needs transformers")

from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.utils.kernel_config import KernelConfig  # noqa: E402

from kernels_hub import (  # noqa: E402
    BundledLayerRepository,
    Mode,
    kernelize,
    load_kernel_mapping,
    report,
    use_kernel_mapping,
)
from kernels_hub.errors import MappingError  # noqa: E402
from kernels_hub.kernelization import transformers_adapter  # noqa: E402

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "pad_token_id": 0,
}  # fmt: skip
IDS = torch.randint(1, 96, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _installed():
    transformers_adapter.install()
    with use_kernel_mapping(load_kernel_mapping("default")):
        yield
    transformers_adapter.uninstall()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**SIZES)).eval().save_pretrained(folder)
    return folder


def rows(model):
    return [(row.path, row.layer_name, row.repository, row.reason) for row in report(model).rows]


def tokens(model, **options):
    mask = torch.ones_like(IDS)
    return model.generate(IDS, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)


def test_use_kernels_is_kernelize(saved):
    plain = LlamaForCausalLM.from_pretrained(saved)
    ours = kernelize(copy.deepcopy(plain), mode=Mode.INFERENCE)
    theirs = LlamaForCausalLM.from_pretrained(saved, use_kernels=True)
    assert rows(theirs) == rows(ours) and any(row.swapped for row in report(theirs).rows)
    with torch.inference_mode():
        assert torch.equal(theirs(IDS).logits, ours(IDS).logits)
        torch.testing.assert_close(theirs(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(tokens(theirs), tokens(plain))
    assert theirs.use_kernels
    theirs.train()
    assert not any(row.swapped and row.mode == "inference" for row in report(theirs).rows)
    theirs.set_use_kernels(False)
    assert not any(row.swapped for row in report(theirs).rows) and not theirs.use_kernels


@pytest.mark.parametrize(
    "options",
    [
        {"cache_implementation": "static"},
        {"cache_implementation": "dynamic"},
        {"cache_implementation": "offloaded_static"},
        {"use_cache": False},
        {"num_beams": 2},
    ],
    ids=lambda one: " ".join(f"{name}={value}" for name, value in one.items()),
)
def test_caches_keep_working(saved, options):
    plain = LlamaForCausalLM.from_pretrained(saved)
    theirs = LlamaForCausalLM.from_pretrained(saved, use_kernels=True)
    try:
        expected = tokens(plain, **options)
    except (ImportError, RuntimeError, ValueError, AssertionError) as error:
        pytest.skip(f"needs what this machine lacks: {str(error).splitlines()[0][:80]}")
    assert torch.equal(tokens(theirs, **options), expected)


def test_sliding_windows(tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config(
        **SIZES, head_dim=16, use_sliding_window=True, sliding_window=4, max_window_layers=0,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    plain = Qwen3ForCausalLM(config).eval()
    plain.save_pretrained(tmp_path)
    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path, use_kernels=True)
    assert torch.equal(tokens(theirs), tokens(plain))


def test_kernel_config(saved):
    layer = "bundled/normalization:RMSNorm"
    for given in (
        {"RMSNorm": layer},
        {"RMSNorm": {"cpu": layer}},
        {"RMSNorm": {"cpu": BundledLayerRepository("normalization", layer_name="RMSNorm")}},
    ):
        config = KernelConfig(given, inherit_mapping=False)
        model = LlamaForCausalLM.from_pretrained(saved, kernel_config=config)
        swapped = [row for row in report(model).rows if row.swapped]
        assert {row.layer_name for row in swapped} <= {"RMSNorm"}
        assert model.kernel_config is config


def test_a_mapping_by_name(saved, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_JIT", "off")
    for given in ("compiled", {"CompiledModel": "compiled"}):
        model = LlamaForCausalLM.from_pretrained(saved, kernel_config=KernelConfig(given))
        assert {row.path: row.layer_name for row in report(model).rows}["model"] == "CompiledModel"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"Nope": "a/b:C"}, "names the layer 'Nope', which LlamaForCausalLM lacks; it has .*RMSNorm"),
        ({"RMSNorm": 3}, "'org/repo:layer', or that and a dict of options, got 3"),
        ({"RMSNorm": ":C"}, "is 'org/repo:layer' or '/path:layer', got ':C'"),
        ({"RMSNorm": ("a/b:C", {"tag": 1})}, "has no option 'tag'"),
        ({(("a", "model.*.x"),): "a/b:C"}, "asks for the fusion"),
        (7, "a dict of layer names, or the name of a mapping, got 7"),
    ],
)
def test_bad_configs_change_nothing(saved, given, words):
    model = LlamaForCausalLM.from_pretrained(saved, use_kernels=True)
    before = rows(model)
    config = KernelConfig()
    config.kernel_mapping = given
    with pytest.raises(MappingError, match=words):
        model.set_use_kernels(True, config)
    assert rows(model) == before and model.kernel_config is None


def test_it_is_one_import_and_leaves_no_module():
    code = (
        "import sys\nbefore = 'kernels' in sys.modules\nimport kernels_hub.transformers as ours\n"
        "from transformers import PreTrainedModel\n"
        "from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb\n"
        "assert LlamaRMSNorm.kernel_layer_name == 'RMSNorm'\n"
        "assert PreTrainedModel.set_use_kernels.__module__.startswith('kernels_hub')\n"
        "assert 'kernels' not in sys.modules or sys.modules['kernels'].__file__.endswith('kernels/__init__.py')\n"
        "ours.uninstall()\nassert PreTrainedModel.set_use_kernels.__module__.startswith('transformers')\n"
    )
    done = run_script(code, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
