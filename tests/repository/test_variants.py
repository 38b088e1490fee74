"""Variant names against their grammar, and the ranking against Hugging Face's own resolver."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import backends as peer_backends
from kernels import variants as peer
from packaging.version import Version as PackagingVersion

from kernels_hub.errors import MetadataError
from kernels_hub.repository.backends import BACKENDS
from kernels_hub.repository.system import System
from kernels_hub.repository.variants import (
    Ranking,
    UnknownVariant,
    Variant,
    VariantAccepted,
    VariantRejected,
    rank,
)

LINUX = System(
    backend="cuda",
    backend_version=(13, 0),
    cpu="x86_64",
    os="linux",
    torch_version=(2, 13),
    cxx11_abi=True,
    tvm_ffi_version=(0, 1),
    free_threaded=False,
)

PARSED = {
    "torch-cpu": Variant("torch", None, None, "cpu", None, None, None),
    "torch-universal": Variant("torch", None, None, "universal", None, None, None),
    "torch-npu": Variant("torch", None, None, "npu", None, None, None),
    "torch-vulkan": Variant("torch", None, None, "vulkan", None, None, None),
    "torch213-cu130-x86_64-linux": Variant("torch", (2, 13), None, "cuda", (13, 0), "x86_64", "linux"),
    "torch213-cpu-aarch64-darwin": Variant("torch", (2, 13), None, "cpu", None, "aarch64", "darwin"),
    "torch29-cxx11-cu126-x86_64-linux": Variant("torch", (2, 9), True, "cuda", (12, 6), "x86_64", "linux"),
    "torch24-cxx98-cu118-x86_64-linux": Variant("torch", (2, 4), False, "cuda", (11, 8), "x86_64", "linux"),
    "torch213-rocm63-x86_64-linux": Variant("torch", (2, 13), None, "rocm", (6, 3), "x86_64", "linux"),
    "torch213-xpu20252-x86_64-linux": Variant("torch", (2, 13), None, "xpu", (2025, 2), "x86_64", "linux"),
    "torch213-cann85-aarch64-linux": Variant("torch", (2, 13), None, "npu", (8, 5), "aarch64", "linux"),
    "torch213-metal-aarch64-darwin": Variant("torch", (2, 13), None, "metal", None, "aarch64", "darwin"),
    "torch213-neuron-x86_64-linux": Variant("torch", (2, 13), None, "neuron", None, "x86_64", "linux"),
    "torch213-tpu-x86_64-linux": Variant("torch", (2, 13), None, "tpu", None, "x86_64", "linux"),
    "torch-stable-abi210-cu130-x86_64-linux": Variant(
        "torch-stable-abi", (2, 10), None, "cuda", (13, 0), "x86_64", "linux"
    ),
    "tvm-ffi01-cu130-x86_64-windows": Variant("tvm-ffi", (0, 1), None, "cuda", (13, 0), "x86_64", "windows"),
    "tvm-ffi010-cpu-x86_64-linux": Variant("tvm-ffi", (0, 10), None, "cpu", None, "x86_64", "linux"),
}

UNPARSABLE = {
    "": "does not name a variant",
    "torch": "does not name a variant",
    "torch-": "does not name a variant",
    "torch-cuda-x86_64": "does not name a variant",
    "torch2-cpu-x86_64-linux": "does not name a variant",
    "torch213-cpu-x86_64": "does not name a variant",
    "torch213-cpu--linux": "does not name a variant",
    "torch213-cxx14-cpu-x86_64-linux": "does not name a variant",
    "torch213-cpu-x86_64-linux\n": "does not name a variant",
    "torch٢١٣-cpu-x86_64-linux": "does not name a variant",
    "jax05-cu130-x86_64-linux": "does not name a variant",
    "torch213-vulkan12-x86_64-linux": "unknown backend 'vulkan12'; known: cpu, cu<major><minor>, rocm",
    "torch213-cu-x86_64-linux": "should read 'cu<major><minor>'",
    "torch213-cu1-x86_64-linux": "should read 'cu<major><minor>'",
    "torch213-cpu1-x86_64-linux": "should read 'cpu'",
    "torch200-cpu-x86_64-linux": "rename the folder to torch20-cpu-x86_64-linux",
    "torch213-cu0130-x86_64-linux": "rename the folder to torch213-cu130-x86_64-linux",
    "__pycache__": "does not name a variant",
}


@pytest.mark.parametrize("name", PARSED)
def test_parse(name: str) -> None:
    assert Variant.parse(name) == PARSED[name]
    assert str(Variant.parse(name)) == Variant.parse(name).variant_str == name


@pytest.mark.parametrize("name", UNPARSABLE)
def test_parse_refuses(name: str) -> None:
    with pytest.raises(MetadataError) as caught:
        Variant.parse(name)
    assert isinstance(caught.value, ValueError)
    assert repr(name) in str(caught.value)
    assert UNPARSABLE[name] in str(caught.value)


# -- random variants and systems --------------------------------------------------------------------

CPUS = ("x86_64", "aarch64")
OSES = ("linux", "darwin", "windows")
VERSIONS = {
    "cuda": ((12, 6), (12, 8), (12, 9), (13, 0)),
    "rocm": ((6, 3), (7, 0)),
    "xpu": ((2025, 2),),
    "npu": ((8, 5),),
}
torch_versions = st.sampled_from([(2, 9), (2, 10), (2, 12), (2, 13)])
tvm_ffi_versions = st.sampled_from([(0, 1), (0, 2)])


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    if draw(st.integers(0, 3)) == 0:
        backend = draw(st.sampled_from([*BACKENDS, "universal", "vulkan"]))
        return Variant("torch", None, None, backend, None, None, None)
    framework = draw(st.sampled_from(["torch", "torch-stable-abi", "tvm-ffi"]))
    backend = draw(st.sampled_from([*BACKENDS, "cuda", "cuda"]))
    return Variant(
        framework=framework,
        framework_version=draw(tvm_ffi_versions if framework == "tvm-ffi" else torch_versions),
        cxx11_abi=draw(st.sampled_from([None, True, False])) if framework == "torch" else None,
        backend=backend,
        backend_version=draw(st.sampled_from(VERSIONS[backend])) if backend in VERSIONS else None,
        cpu=draw(st.sampled_from(CPUS[:1] * 3 + CPUS)),
        os=draw(st.sampled_from(OSES[:1] * 3 + OSES)),
    )


@st.composite
def systems(draw: st.DrawFn) -> System:
    backend = draw(st.sampled_from([*BACKENDS, "cuda", "cuda"]))
    os = draw(st.sampled_from(OSES[:1] * 3 + OSES))
    return System(
        backend=backend,
        backend_version=draw(st.sampled_from(VERSIONS[backend])) if backend in VERSIONS else None,
        cpu=draw(st.sampled_from(CPUS[:1] * 3 + CPUS)),
        os=os,
        torch_version=draw(st.none() | torch_versions),
        cxx11_abi=draw(st.booleans()) if os == "linux" else None,
        tvm_ffi_version=draw(st.none() | tvm_ffi_versions),
        free_threaded=draw(st.integers(0, 9)) == 0,
        os_version=draw(st.sampled_from([None, (15, 5), (26, 0)])) if os == "darwin" else None,
    )


@settings(deadline=None)  # the machine may be busy
@given(variants())
def test_round_trip(variant: Variant) -> None:
    assert Variant.parse(str(variant)) == variant


@settings(deadline=None)
@given(st.text(alphabet="torchcupbiavmfx-_0123456789", max_size=40) | st.text(max_size=20))
def test_parse_gives_the_name_back_or_refuses(name: str) -> None:
    try:
        variant = Variant.parse(name)
    except MetadataError:
        return
    assert str(variant) == name


@settings(deadline=None)
@given(st.lists(variants(), max_size=12), systems(), st.randoms(use_true_random=False))
def test_ranking_ignores_order(found: list[Variant], system: System, shuffle: random.Random) -> None:
    names = [str(variant) for variant in found]
    expected = rank(names, system)
    again = names * 2
    shuffle.shuffle(again)
    assert rank(again, system) == expected
    assert {str(decision.variant) for decision in expected.decisions} == set(names)


@settings(deadline=None)
@given(st.lists(variants(), max_size=12), systems())
def test_ranking_agrees_with_hugging_face(found: list[Variant], system: System) -> None:
    """Same accepted set, and an order that theirs, being stable under ties, leaves as it is."""
    names = sorted({str(variant) for variant in found})
    ranking = rank(names, system)
    ours = [str(decision.variant) for decision in ranking.accepted]
    with mock.patch.object(peer, "_is_unsupported_free_threaded_build", return_value=system.free_threaded):
        theirs, _ = _resolve_with_peer(names, system)
        assert set(theirs) == set(ours)
        assert _resolve_with_peer(ours, system)[0] == ours


def _resolve_with_peer(names: list[str], system: System) -> tuple[list[str], object]:
    spelled = BACKENDS[system.backend].spelling
    if system.backend_version is not None:
        spelled += "".join(map(str, system.backend_version))

    def version(pair: tuple[int, int] | None) -> PackagingVersion | None:
        return None if pair is None else PackagingVersion(f"{pair[0]}.{pair[1]}")

    accepted, trace = peer._resolve_variant_for_system(
        variants=[peer.parse_variant(name) for name in names],
        selected_backend=peer_backends.parse_backend(spelled),
        cpu=system.cpu,
        os=system.os,
        torch_version=version(system.torch_version),
        torch_cxx11_abi=system.cxx11_abi,
        tvm_ffi_version=version(system.tvm_ffi_version),
        macos_version=version(system.os_version),
    )
    return [variant.variant_str for variant in accepted], trace


def test_the_oracle_notices_a_wrong_order() -> None:
    worst_first = ["torch-cuda", "torch213-cu130-x86_64-linux"]
    assert _resolve_with_peer(worst_first, LINUX)[0] == worst_first[::-1]


# -- preference and reasons -------------------------------------------------------------------------

BEST_FIRST = (
    "torch-stable-abi213-cu130-x86_64-linux",
    "torch-stable-abi210-cu130-x86_64-linux",
    "torch213-cu130-x86_64-linux",
    "torch213-cxx11-cu130-x86_64-linux",
    "tvm-ffi01-cu130-x86_64-linux",
    "torch-cuda",
    "torch-universal",
)


def test_preference() -> None:
    names = list(BEST_FIRST)
    random.Random(0).shuffle(names)
    ranking = rank(names, LINUX)
    assert tuple(map(str, (decision.variant for decision in ranking.accepted))) == BEST_FIRST
    assert ranking.best == Variant.parse(BEST_FIRST[0])


def test_newer_cuda_minor_wins() -> None:
    system = replace(LINUX, backend_version=(12, 9))
    names = [f"torch213-cu12{minor}-x86_64-linux" for minor in (6, 8, 9)]
    assert [str(d.variant) for d in rank(names, system).accepted] == names[::-1]


REASONS = {
    "torch-cpu": "backend cpu, not cuda",
    "torch213-cu130-aarch64-linux": "CPU aarch64, not x86_64",
    "torch213-cu130-x86_64-windows": "OS windows, not linux",
    "torch212-cu130-x86_64-linux": "torch 2.12, here is 2.13",
    "torch213-cxx98-cu130-x86_64-linux": "C++ ABI cxx98, torch here has cxx11",
    "torch-stable-abi214-cu130-x86_64-linux": "needs torch 2.14 or newer",
    "tvm-ffi02-cu130-x86_64-linux": "tvm-ffi 0.2, here is 0.1",
    "torch213-cu128-x86_64-linux": "CUDA 12.8, torch here has 13.0",
    "torch213-cu131-x86_64-linux": "CUDA 13.1, torch here has 13.0",
    "torch213-rocm70-x86_64-linux": "backend rocm, not cuda",
    "source": "does not name a variant",
}


def test_every_rejection_has_its_reason() -> None:
    ranking = rank(REASONS, LINUX)
    assert not ranking.accepted
    assert ranking.best is None
    assert [str(decision.variant) for decision in ranking.rejected] == sorted(REASONS)
    for decision in ranking.rejected:
        assert REASONS[str(decision.variant)] in decision.reason
    assert str(ranking).count("\n") == len(REASONS) - 1


def test_unparsable_names_are_kept() -> None:
    (decision,) = rank(["old-build"], LINUX).decisions
    assert isinstance(decision, VariantRejected)
    assert decision.variant == UnknownVariant("old-build")
    assert decision.variant.variant_str == str(decision.variant) == "old-build"


def test_unknown_backend_version_accepts_noarch_only() -> None:
    ranking = rank(["torch-cuda", "torch213-cu130-x86_64-linux"], replace(LINUX, backend_version=None))
    assert ranking.accepted == (VariantAccepted(Variant.parse("torch-cuda")),)
    assert "the version of cuda is unknown here" in ranking.rejected[0].reason


def test_free_threaded_python_takes_noarch_only() -> None:
    ranking = rank(["torch-cuda", "torch213-cu130-x86_64-linux"], replace(LINUX, free_threaded=True))
    assert ranking.best == Variant.parse("torch-cuda")
    assert "free-threaded" in ranking.rejected[0].reason


def test_npu_is_spelled_cann_in_arch_variants() -> None:
    system = replace(LINUX, backend="npu", backend_version=(8, 5))
    names = ["torch-npu", "torch213-cann85-x86_64-linux"]
    assert [str(d.variant) for d in rank(names, system).accepted] == names[::-1]
    (decision,) = rank(["torch213-cann80-x86_64-linux"], system).rejected
    assert decision.reason == "it is for cann80, torch here has cann85"


def test_no_names() -> None:
    assert rank([], LINUX) == Ranking((), ())
