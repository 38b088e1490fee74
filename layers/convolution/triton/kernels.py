"""Convolution on CUDA and ROCm: an implicit matrix product in Triton.

The product is (N P Q, R S C/groups) x (R S C/groups, K/groups) for each group. The left matrix is
never written: a tile of it is gathered from the input. Everything is channels_last inside, so that
neighbouring threads read neighbouring channels; NCHW tensors are converted before and after, as
cuDNN does. Sources: arXiv 1410.0759 (implicit GEMM), docs.nvidia.com/deeplearning/performance
(convolutional layers: tensor layouts).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import reference
from .triton_launches import cdiv, launch, next_power_of_2

TRAINS = True
"""Whether the layers call the operators where a gradient is needed."""

at_once: Callable[..., Tensor | None] | None = None
loses: Callable[..., bool] | None = None
"""Nothing is to be had from leaving out an operator here."""


def pays(input: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    """Whether `conv2d` is worth calling; which sizes gain is the mapping's to say."""
    return True


def takes_planes(input: Tensor, weight: Tensor, stride: Sequence[int]) -> bool:
    """Whether `conv2d` is worth calling for one line of pixels: cuDNN and MIOpen have convolutions of one dimension."""
    return False


def fuses(input: Tensor, weight: Tensor, stride: Sequence[int]) -> bool:
    """Whether `conv_norm` is worth calling: always, it saves reading and writing the data twice."""
    return True


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def convolution_kernel(
    x,  # (N, H, W, C)
    w,  # (K, R, S, C / groups)
    bias,  # (K,), as gamma, beta, mean and variance
    gamma,
    beta,
    mean,
    variance,
    residual,  # (N, P, Q, K)
    y,  # (N, P, Q, K)
    pixels,  # N * P * Q
    height,
    width,
    out_height,
    out_width,
    x_channels,  # C
    y_channels,  # K
    channels,  # C / groups
    filters,  # K / groups
    depth,  # R * S * C / groups
    columns,  # S
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    eps,
    NORM: tl.constexpr,
    RELU: tl.constexpr,
    EVEN_CHANNELS: tl.constexpr,  # channels is a multiple of BLOCK_K: all of a block lies in one (r, s)
    WIDE: tl.constexpr,  # offsets need 64 bits
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,  # only for the interpreter, whose tl.dot multiplies bfloat16's bit patterns
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    group = tl.program_id(1)
    tiles_n = tl.cdiv(filters, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    lane = tl.arange(0, BLOCK_K)
    if WIDE:
        group, tile_m, tile_n, lane = (
            group.to(tl.int64),
            tile_m.to(tl.int64),
            tile_n.to(tl.int64),
            lane.to(tl.int64),
        )
    pixel = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    is_pixel = pixel < pixels
    top = pixel // out_width % out_height * stride_h - pad_h
    left = pixel % out_width * stride_w - pad_w
    image = pixel // out_width // out_height * height
    filter = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_filter = filter < filters
    k = group * filters + filter

    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, depth, BLOCK_K):
        if EVEN_CHANNELS:
            tap = start // channels
            h = top + tap // columns * dilation_h
            v = left + tap % columns * dilation_w
            is_row = is_pixel & (h >= 0) & (h < height) & (v >= 0) & (v < width)
            row = ((image + h) * width + v) * x_channels + group * channels + start % channels
            a = tl.load(x + (row[:, None] + lane[None, :]), mask=is_row[:, None], other=0.0)
            is_weight = is_filter[None, :]
        else:
            tap = (start + lane) // channels
            is_depth = start + lane < depth
            h = top[:, None] + (tap // columns * dilation_h)[None, :]
            v = left[:, None] + (tap % columns * dilation_w)[None, :]
            is_row = is_pixel[:, None] & is_depth[None, :] & (h >= 0) & (h < height) & (v >= 0) & (v < width)
            channel = group * channels + (start + lane) % channels
            a = tl.load(
                x + (((image[:, None] + h) * width + v) * x_channels + channel[None, :]),
                mask=is_row,
                other=0.0,
            )
            is_weight = is_filter[None, :] & is_depth[:, None]
        b = tl.load(w + ((k * depth + start)[None, :] + lane[:, None]), mask=is_weight, other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)

    if bias is not None:
        sums += tl.load(bias + k, mask=is_filter, other=0.0).to(tl.float32)[None, :]
    if NORM:  # rounded where the convolution and the norm of PyTorch each round
        sums = sums.to(y.dtype.element_ty).to(tl.float32)
        scale = tl.rsqrt(tl.load(variance + k, mask=is_filter, other=1.0).to(tl.float32) + eps)
        if gamma is not None:
            scale *= tl.load(gamma + k, mask=is_filter, other=1.0).to(tl.float32)
        shift = -tl.load(mean + k, mask=is_filter, other=0.0).to(tl.float32) * scale
        if beta is not None:
            shift += tl.load(beta + k, mask=is_filter, other=0.0).to(tl.float32)
        sums = sums * scale[None, :] + shift[None, :]
    y_offset = (pixel * y_channels)[:, None] + k[None, :]
    is_stored = is_pixel[:, None] & is_filter[None, :]
    if residual is not None:
        sums = sums.to(y.dtype.element_ty).to(tl.float32)
        sums += tl.load(residual + y_offset, mask=is_stored, other=0.0).to(tl.float32)
    if RELU:
        sums = tl.where(sums < 0.0, 0.0, sums)  # NaN stays
    tl.store(y + y_offset, sums.to(y.dtype.element_ty), mask=is_stored)


_MANY_PIXELS = 2048
"""Output pixels from which large tiles still make enough programs."""


class ConvolutionTile(NamedTuple):
    """What one program computes, and with how many warps."""

    pixels: int
    filters: int
    depth: int
    warps: int


def tile(dtype: torch.dtype, pixels: int, filters: int, wide: bool) -> ConvolutionTile:
    """The tile for a product of `pixels` rows and `filters` columns a group.

    Narrow where there are few filters (a depthwise convolution has one a group), low where there are
    few pixels. float32 and 64-bit offsets take more registers, so their tiles are smaller.
    """
    narrow = min(max(next_power_of_2(filters), 16), 64)
    if wide:
        return ConvolutionTile(32, min(narrow, 32), 32, 8)
    if dtype is torch.float32:
        return ConvolutionTile(64 if pixels >= _MANY_PIXELS else 32, min(narrow, 32), 32, 4)
    return (
        ConvolutionTile(128, narrow, 32, 8) if pixels >= _MANY_PIXELS else ConvolutionTile(32, narrow, 32, 4)
    )


def precision(dtype: torch.dtype) -> str:
    """TF32 for float32 exactly where cuDNN would use it."""
    tf32 = torch.version.hip is None and torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return "tf32" if dtype is torch.float32 and tf32 else "ieee"


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """reference.conv2d in Triton."""
    geometry = (stride, padding, dilation, groups)
    if not _is_supported(input, weight, bias, *geometry):
        return reference.conv2d(input, weight, bias, *geometry)
    return _launch(input, weight, bias, None, None, 0.0, *geometry, False)


def conv_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    residual: Tensor | None,
    eps: float,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    relu: bool,
) -> Tensor:
    """reference.conv_norm in Triton, the norm, the sum and ReLU in the product's epilogue."""
    geometry = (stride, padding, dilation, groups)
    norm = (norm_weight, norm_bias, running_mean, running_var)
    supported = _is_supported(input, weight, bias, *geometry)
    if supported and residual is not None:
        shape = reference.output_shape(input.shape, weight.shape, stride, padding, dilation)
        supported = residual.shape == shape and residual.dtype == input.dtype
    if not supported:
        return reference.conv_norm(input, weight, bias, *norm, residual, eps, *geometry, relu)
    vectors = tuple(None if tensor is None else tensor.contiguous() for tensor in norm)
    return _launch(input, weight, bias, vectors, residual, eps, *geometry, relu)


def _is_supported(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    return weight.dtype in _DTYPES and reference.is_regular(
        input, weight, bias, stride, padding, dilation, groups
    )


def _launch(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: tuple[Tensor | None, ...] | None,
    residual: Tensor | None,
    eps: float,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    relu: bool,
) -> Tensor:
    batch, filters, out_height, out_width = reference.output_shape(
        input.shape, weight.shape, stride, padding, dilation
    )
    channels_last = reference.is_channels_last(input) or reference.is_channels_last(weight)
    if norm is not None and input.device.type == "cpu":  # the interpreter, where the reference's rule holds
        channels_last = True
    x, w = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (input, weight))
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    shape = (batch, filters, out_height, out_width)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels = batch * out_height * out_width
    channels, _, columns = w.shape[1:]
    wide = (
        max(x.numel(), w.numel(), (pixels + 128) * (filters + 64)) >= 2**31
    )  # a last tile's rows reach further
    tiling = tile(x.dtype, pixels, filters // groups, wide)
    tiles = cdiv(pixels, tiling.pixels) * cdiv(filters // groups, tiling.filters)
    launch(
        convolution_kernel,
        (tiles, groups),
        (
            x,
            w,
            bias,
            *(norm or (None, None, None, None)),
            residual,
            y,
            pixels,
            *x.shape[2:],
            out_height,
            out_width,
            x.shape[1],
            filters,
            channels,
            filters // groups,
            w[0].numel(),
            columns,
            *stride,
            *padding,
            *dilation,
            eps,
        ),
        NORM=norm is not None,
        RELU=relu,
        EVEN_CHANNELS=channels % tiling.depth == 0,
        WIDE=wide,
        PRECISION=precision(x.dtype),
        UPCAST=triton.knobs.runtime.interpret and x.dtype is torch.bfloat16,
        BLOCK_M=tiling.pixels,
        BLOCK_N=tiling.filters,
        BLOCK_K=tiling.depth,
        num_warps=tiling.warps,
    )
    return y if channels_last else y.clone(memory_format=torch.contiguous_format)


def _implementations(
    native: Callable[..., Tensor], plain: Callable[..., Tensor]
) -> dict[str, Callable[..., Tensor]]:
    keys = {"CUDA": native, "CompositeExplicitAutograd": plain}
    return keys | {"CPU": native} if triton.knobs.runtime.interpret else keys


CONV2D = _implementations(conv2d, reference.conv2d)
CONV_NORM = _implementations(conv_norm, reference.conv_norm)
