"""Iota, sizes, and random bits. Inputs, parameters and constants are the program's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels_hub.compiler.engines.library_ops.site import LibraryKernel, Reason, Run, Site
from kernels_hub.compiler.engines.tensors import TORCH, scalar_tensor
from kernels_hub.compiler.ir.graph import Node


def _make_iota(site: Site) -> Run:
    numbers = torch.arange(site["size"], device=site.device).to(site.dtype)
    return lambda: numbers


def _make_size(site: Site) -> Run:
    number = scalar_tensor(site["value"], site.row, site.device)
    return lambda: number


_LOW = 0xFFFFFFFF


def _make_random(site: Site) -> Run:
    """Philox-4x32-10, each 32-bit word in an int64: products keep their low 64 bits, which are all that is read."""
    shape = site.shape
    count = math.prod(shape)

    def run(key: Tensor) -> Tensor:
        place = torch.arange(count, dtype=torch.int64, device=site.device)
        bits = key.view(torch.int64)
        k0, k1 = bits & _LOW, (bits >> 32) & _LOW
        c0, c1 = place & _LOW, place >> 32
        c2 = c3 = torch.zeros_like(place)
        for _ in range(10):
            first, second = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
            c0, c1, c2, c3 = second[0] ^ c1 ^ k0, second[1], first[0] ^ c3 ^ k1, first[1]
            k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
        return c0.to(torch.uint32).reshape(shape)

    return run


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product of two words."""
    product = word * factor
    return (product >> 32) & _LOW, product & _LOW


def _declines_iota(node: Node, _: str) -> Reason:
    row = node.results[0].dtype
    return f"iota of {row}" if row.bits < 8 or row.name not in TORCH or row.name == "float8_e8m0fnu" else None


KERNELS = {
    "iota": LibraryKernel(_make_iota, None, _declines_iota),
    "size": LibraryKernel(_make_size),
    "define_size": LibraryKernel(lambda _: lambda x: x),
    "random_bits": LibraryKernel(_make_random),
}
