"""Op by op against torch: one program for a family's cases, so that each is traced and compared in one go."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers.integrations.moe  # noqa: F401  (registers grouped_mm_fallback)

from tests.compiler.importers.torch_programs import check_function

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own


def rand(*shape, dtype=torch.float32, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (
        (values * 3).to(dtype) if dtype.is_floating_point or dtype == torch.bool else (values * 9).to(dtype)
    )


X, Y, POSITIVE = rand(2, 3, 5), rand(3, 1, seed=1), rand(2, 3, 5).abs() + 0.1
BF16 = X.bfloat16()
IDS, BOOLS = rand(4, 5, dtype=torch.int64), rand(4, 5) > 0
I32, U8 = rand(4, 5, dtype=torch.int32, seed=3), rand(4, 5).abs().to(torch.uint8)
EMPTY, SCALAR = torch.zeros(0, 4), torch.tensor(2.5)
IMAGE, VOLUME, ROW = rand(2, 4, 7, 9), rand(1, 2, 4, 5, 3), rand(2, 4, 11)
PLACES = torch.tensor([[0, 2], [-1, 1]])
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.5, -2.5])

UNARY = ("exp expm1 sin cos tan atan sinh tanh asinh erf erfc sigmoid floor ceil trunc round neg abs square "
         "sign relu isnan isinf isfinite").split()  # fmt: skip
OF_POSITIVE = "log log2 log10 log1p sqrt rsqrt reciprocal exp2".split()
ACTIVATIONS = {
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish,
    "elu": F.elu, "selu": F.selu, "leaky": F.leaky_relu, "softplus": F.softplus, "relu6": F.relu6,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh, "logsigmoid": F.logsigmoid,
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, 0), "celu": F.celu,
}  # fmt: skip

CASES = {
    "unary": (lambda x: [getattr(torch, name)(x) for name in UNARY], X),
    "unary of special values": (lambda x: [getattr(torch, name)(x) for name in UNARY if name != "sign"], SPECIAL),
    "unary of positive": (lambda x: [getattr(torch, name)(x) for name in OF_POSITIVE], POSITIVE),
    "unary of integers": (lambda i, b: [i.exp(), i.sqrt().isnan(), i.abs(), i.floor(), -i, ~i, ~b, b.exp(), i.sigmoid()],
                          IDS, BOOLS),
    "unary of nothing": (lambda x: [x.exp(), x.sum(), x.sum(0), x.mean(1), x.reshape(4, 0), torch.cat([x, x])], EMPTY),
    "activations": (lambda x: [one(x) for one in ACTIVATIONS.values()], X),
    "activations in bfloat16": (lambda x: [one(x) for one in ACTIVATIONS.values()], BF16),
    "glu": (lambda x: F.glu(x, 1), IMAGE),
    "arithmetic": (lambda a, b: [a + b, a - b, a * b, a / b, a % b, a // b, torch.maximum(a, b), torch.minimum(a, b),
                                 torch.add(a, b, alpha=2), torch.sub(a, b, alpha=0.5), torch.fmod(a, b),
                                 torch.atan2(a, b), torch.rsub(a, b)], X, Y),
    "scalars": (lambda a: [a + 1, 1 - a, a * 2.5, 2 / a, a // 2, a % 3, a**2, a**3, a.abs() ** 0.5, a.abs() ** -1.5,
                           2**a, a.clamp(-1, 1), a.clamp(min=0), a.clamp(max=0.5), a.clamp(2, 1)], X),
    "integers": (lambda a, b: [a + b, a * b, a - b, a // 3, a % 4, a % -4, a / 2, torch.div(a, 4, rounding_mode="trunc"),
                               torch.div(a, 4, rounding_mode="floor"), a & b, a | b, a ^ b, a << 1, a >> 1, a**2,
                               a.clamp(-2, 3)], IDS, I32),
    "promotion": (lambda i, j, u, b, x, h, s: [i + j, j + u, i + 1.5, i * b, b + b, b * b, b + 1, u * 2, x + i, x * b,
                                              h + 1.5, h + x, h * i, i + s, h + s, i / j.abs().clamp(1), i > 0.5, u < -1,
                                              h < s, b == 1, torch.where(b, i, 0.5), torch.where(b, h, x)],
                  IDS, I32, U8, BOOLS, rand(4, 5), rand(4, 5).bfloat16(), SCALAR),
    "comparisons": (lambda a, b: [a == b, a != b, a < b, a <= b, a > b, a >= b, a > 0, (a > 0) & (b > 0),
                                  torch.logical_or(a, b), torch.logical_not(a), torch.logical_xor(a, b)], X, Y),
    "choices": (lambda b, x, y: [torch.where(b, x, y), x.masked_fill(b, -1.0), torch.where(b, x, 0.0)],
                BOOLS, rand(4, 5), rand(5)),
    "casts": (lambda x, i, b: [x.int(), x.double(), x.bfloat16(), x.bool(), i.float(), i.to(torch.uint8), b.long(),
                               b.to(torch.float16)], X, IDS, BOOLS),
    "fused arithmetic": (lambda x: [torch.addcmul(x, x, x, value=0.5), torch.addcdiv(x, x, x.abs() + 1, value=2),
                                    torch.lerp(x, x * 2, 0.3)], X),
    "views": (lambda x: [x.view(6, 5), x.reshape(-1), x.transpose(-1, 0), x.permute(2, 0, 1), x.unsqueeze(-2),
                         x[:, :1].squeeze(1), x.flatten(1), x.expand(4, 2, 3, 5), x[..., None].expand(-1, -1, -1, 2),
                         x.unflatten(-1, (5, 1)), x.movedim(0, -1), x.mT, x.diagonal(0, 1, 2), x.diagonal(1, -2, -1)], X),
    "differences": (lambda x, i: [x.diff(), x.diff(dim=0), x.diff(2, 1), i.diff(prepend=i[:, :1]), i.diff(append=i, dim=0)],
                    X, IDS),
    "slices": (lambda x: [x[1], x[-1], x[:, -2:], x[:, :-1, 1:100], x[..., ::2], x[:, 5:], x.narrow(2, 1, 3),
                          x.select(-1, -2), x[..., 1::3]], X),
    "parts": (lambda x: [*x.split(2, -1), *x.chunk(2, 1), *x.unbind(0), *x.split([1, 4], 2)], X),
    "joins": (lambda x: [torch.cat([x, x], -1), torch.stack([x, x], 1), torch.cat([x, x.double()], 0),
                         torch.cat([torch.zeros(0), x[0, 0]]), torch.hstack([x, x])], X),
    "spatial edits": (lambda x: [x.flip(0, -1), x.roll(2, -1), x.roll((1, -1), (0, 2)), x.roll(1), x.repeat(2, 1, 1, 2),
                                 x.repeat_interleave(2, 1), F.pad(x, (1, 2)), F.pad(x, (-1, 1, 0, 2), value=3.0),
                                 x.tril(), x.triu(1), x.tril(-1), torch.tile(x, (2,)), x.unfold(2, 3, 2),
                                 F.pad(x, (1, 2), mode="reflect"), F.pad(x, (1, 1), mode="replicate")], X),
    "creation": (lambda x: [torch.zeros(2, 3), torch.ones_like(x), torch.full((2,), 7), torch.arange(2, 9, 3),
                            torch.arange(0.0, 1.0, 0.25), torch.linspace(0, 1, 5), torch.eye(3), x.new_full((2,), 1.5),
                            torch.tensor([1, 2, 3]) + x.long()[0, 0, :3]], X),
    "reductions": (lambda x: [x.sum(), x.sum(-1), x.sum((0, 2), keepdim=True), x.mean(1), x.mean(), x.prod(2), x.amax(1),
                              x.amin((0, 1)), x.max(), *x.max(1), *x.min(-1, keepdim=True), x.argmax(), x.argmin(1),
                              x.argmax(-1, keepdim=True), x.var(1), x.var(unbiased=False), x.std(-1), *torch.var_mean(x, 2),
                              x.logsumexp(1), x.norm(), x.norm(1, -1), torch.linalg.vector_norm(x, 3, 1),
                              x.sum(1, dtype=torch.float64), torch.linalg.vector_norm(x, float("inf"))], X),
    "reductions of integers": (lambda i, b: [i.sum(), i.prod(1), i.max(), b.sum(), b.any(), b.all(1), b.any(0, keepdim=True),
                                             i.cumsum(1), b.cumsum(0), i.float().mean(), i.any(), b.max()], IDS, BOOLS),
    "reductions in bfloat16": (lambda x: [x.sum(-1), x.mean(0), x.amax(1), x.var(1)], BF16),
    "0-d": (lambda s: [s.sum(), s.sum(0), s.mean(-1), s.softmax(0), s.cumsum(0), s.reshape(1), s.expand(3), s + 1,
                       s.argmax(0), s.unsqueeze(0)], SCALAR),
    "order": (lambda x: [*x.sort(-1), *x.sort(1, descending=True), x.argsort(0), *x.topk(2), *x.topk(2, 1, largest=False),
                         x.cumsum(-1), x.cumprod(0)], X),
    "products": (lambda a, b, v: [a @ b, torch.bmm(a, b), a @ v, v @ v, torch.addmm(a[0] @ b[0], a[1], b[1]), v @ b,
                                  torch.einsum("bij,bjk->bki", a, b), F.linear(a, b[0].T), torch.outer(v, v),
                                  torch.baddbmm(a @ b, a, b, beta=2, alpha=0.5), a[0] @ b],
                 rand(2, 3, 5), rand(2, 5, 4, seed=1), rand(5)),
    "groups": (lambda x, w, e: [
        torch.ops.transformers.grouped_mm_fallback(x, w, torch.cumsum(torch.histc(e, 3, 0, 2), 0, dtype=torch.int32)),
        torch.histc(x, 5, -1, 1.5)],
        rand(7, 5), rand(3, 5, 4, seed=1), torch.tensor([0.0, 0, 1, 1, 1, 2, 2])),
    "convolutions": (lambda x, r, v, w, k, t, g, b: [
        F.conv2d(x, w, b), F.conv2d(x, w, None, 2, 1), F.conv2d(x, g, b, padding="same", groups=4),
        F.conv2d(x, w, b, dilation=2), F.conv1d(r, k), F.conv3d(v, v[:, :, :2, :2, :2]), F.conv2d(x[0], w, b),
        F.conv_transpose2d(x, t, None, 2, 1, 1), F.conv_transpose1d(r, k.transpose(0, 1), stride=3)],
        IMAGE, ROW, VOLUME, rand(4, 4, 3, 3), rand(3, 4, 2), rand(4, 2, 3, 3), rand(4, 1, 3, 3), rand(4)),
    "normalizations": (lambda x, w, b: [
        F.layer_norm(x, (7, 9)), F.layer_norm(x, (9,), x[0, 0, 0], x[0, 0, 1], 1e-3), F.rms_norm(x, (9,), x[0, 0, 0]),
        F.group_norm(x, 2, w, b), F.instance_norm(x), F.batch_norm(x, b, w.abs(), w, b), F.normalize(x, dim=1),
        F.rms_norm(x, (7, 9)), F.local_response_norm(x, 3)], IMAGE, rand(4), rand(4, seed=2)),
    "normalizations in bfloat16": (lambda x: [F.layer_norm(x, (9,)), F.group_norm(x, 2), F.rms_norm(x, (9,))], IMAGE.bfloat16()),
    "pooling": (lambda x, r: [F.max_pool2d(x, 3, 2, 1), *F.max_pool2d(x, 2, return_indices=True), F.avg_pool2d(x, 3, 2, 1),
                              F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), F.max_pool1d(r, 3),
                              F.avg_pool1d(r, 2), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 4)),
                              F.avg_pool2d(x, 2, divisor_override=3), F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True),
                              F.adaptive_avg_pool1d(r, 4)], IMAGE, ROW),
    "sums of three": (lambda a, w, b, x: [
        F.bilinear(a, b, w, x), F.bilinear(a.repeat(2, 1, 1), b.repeat(2, 1, 1), w)], rand(4, 3), rand(5, 3, 2), rand(4, 2, seed=2), rand(5)),
    "adaptive maxima": (lambda x, r, v: [
        F.adaptive_max_pool2d(x, (3, 4)), *F.adaptive_max_pool2d(x, (2, 9), return_indices=True),
        *F.adaptive_max_pool1d(r, 4, return_indices=True), F.adaptive_max_pool2d(x, 1),
        *F.adaptive_max_pool2d(x, (7, 3), return_indices=True), F.adaptive_max_pool2d(x[0], (1, 3)),
        *F.adaptive_max_pool3d(v, (2, 1, 3), return_indices=True)], IMAGE, ROW, VOLUME),
    "pooling of more than there is": (lambda x, r: [
        F.avg_pool2d(x, 1280, ceil_mode=True), F.avg_pool2d(x, 20, 19, 3, ceil_mode=True),
        F.avg_pool2d(x, 20, 19, 3, ceil_mode=True, count_include_pad=False), F.avg_pool2d(x, (7, 9)),
        F.avg_pool2d(x, (8, 3), ceil_mode=True), F.avg_pool2d(x, 50, ceil_mode=True, divisor_override=3),
        *F.max_pool2d(x, 99, ceil_mode=True, return_indices=True), F.max_pool1d(r, 30, 29, 5, ceil_mode=True)], IMAGE, ROW),
    "resizing": (lambda x, r: [
        F.interpolate(x, scale_factor=2), F.interpolate(x, size=(5, 13)), F.interpolate(r, scale_factor=1.5),
        F.interpolate(x, scale_factor=2.0, mode="bilinear"), F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=1.7, mode="bilinear"), F.interpolate(x, size=(11, 12), mode="bicubic"),
        *(F.interpolate(x, size=(4, 5), mode=how, antialias=True) for how in ("bilinear", "bicubic")),
        F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True), F.interpolate(x, scale_factor=1.3, mode="bicubic"),
        F.interpolate(x, size=(4, 5), mode="nearest-exact"), F.interpolate(r, size=7, mode="linear")], IMAGE, ROW),
    "sampling": (lambda x, v, at, in_v, far: [
        *(F.grid_sample(x, at, how, padding, aligned) for how in ("bilinear", "nearest", "bicubic")
          for padding in ("zeros", "border", "reflection") for aligned in (False, True)),
        *(F.grid_sample(v, in_v, how, align_corners=aligned) for how in ("bilinear", "nearest") for aligned in (False, True)),
        *(F.grid_sample(x, far, padding_mode=padding, align_corners=False) for padding in ("zeros", "border", "reflection"))],
        IMAGE, VOLUME, rand(2, 3, 5, 2, seed=1) / 3, rand(1, 2, 3, 4, 3, seed=2) / 3,
        torch.tensor([float("nan"), -1e6, float("inf"), 0.5]).expand(2, 1, 4).reshape(2, 2, 1, 2)),
    "picks by a mask": (lambda x, y: [x[x > 0], x[:, y], y[y], torch.cat([x[:, y], x[:, ~y]], 1)],
                        rand(4, 5), rand(5) > 0),
    "attention": (lambda q, k, m, f: [
        F.scaled_dot_product_attention(q, k, k), F.scaled_dot_product_attention(q, k, k, is_causal=True),
        F.scaled_dot_product_attention(q, k, k, m), F.scaled_dot_product_attention(q, k, k, f, scale=0.3),
        F.scaled_dot_product_attention(q, k[:, :2], k[:, :2], enable_gqa=True)],
        rand(2, 4, 3, 8), rand(2, 4, 6, 8, seed=1), torch.arange(6) > torch.tensor([[1], [5], [3]]), rand(3, 6)),
    "gathers": (lambda x, i: [F.embedding(i % 2, x[0]), x[i % 2], x[:, i], x[i % 2, i], x[:, i, i], x[i % 2, :, i],
                              x.index_select(1, i[0] % 3), x.gather(2, (i % 5).expand(2, 2, 2)),
                              x[:, :, i]], X, PLACES),
    "scatters": (lambda x, i, s: [
        x.scatter(1, i % 5, s), x.scatter(1, i % 5, 2.0), x.scatter_add(0, i % 4, s), x.index_put((i % 4,), s[0, 0]),
        x.index_put((i % 4, i % 5), s[:2, :2], accumulate=True), x.index_add(0, i[0] % 4, x[:2]),
        x.index_copy(1, i[0] % 5, x[:, :2]), x.scatter_reduce(0, i % 4, s, "amax")],
        rand(4, 5), PLACES, rand(4, 5, seed=4)),
    "reducing scatters": (lambda x, i, s: [
        *(one.scatter_reduce(0, i, s.to(one.dtype), how, include_self=with_old) for one in (x, x.to(torch.int32))
          for with_old in (False, True) for how in ("sum", "prod", "mean", "amax", "amin")),
        *(x.index_reduce(axis, i[0] % 4, given, how, include_self=with_old) for axis, given in ((0, s[:2]), (1, s[:, :2]))
          for with_old in (False, True) for how in ("prod", "mean", "amax", "amin"))],
        rand(4, 5), PLACES % 4, rand(4, 5, seed=4)),
    "triangles": (lambda x: [x[torch.tril_indices(4, 5, one).unbind()] for one in (-1, 0, 2)]
                  + [x[torch.triu_indices(4, 5, one).unbind()] for one in (-1, 0, 2)], rand(4, 5)),
    "bags": (lambda w, i, j, o, s: [
        *(F.embedding_bag(i, w, mode=how, padding_idx=pad) for how in ("sum", "mean", "max") for pad in (None, 2, -3)),
        *(F.embedding_bag(j, w, o, mode=how, padding_idx=pad, include_last_offset=last)
          for how in ("sum", "mean", "max") for pad in (None, 1) for last in (False, True)),
        F.embedding_bag(i, w, per_sample_weights=s[:6].reshape(3, 2), mode="sum"),
        F.embedding_bag(j, w, o, per_sample_weights=s, mode="sum")],
        rand(6, 4), torch.tensor([[0, 2], [2, 2], [5, 3]]), torch.tensor([1, 1, 0, 5, 3, 1, 2]),
        torch.tensor([0, 2, 2, 5, 7]), rand(7, seed=5)),
    "writes": (lambda x: [torch.select_scatter(x, x[0], 0, -1), torch.slice_scatter(x, x[:2], 0, 1, 3),
                          torch.slice_scatter(x, x[:2], 0, 0, 4, 2), F.one_hot(x.long() % 4, 4)], rand(4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ops(name):
    function, *args = CASES[name]
    check_function(function, *args)
