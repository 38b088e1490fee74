"""One rank of a distributed scenario: `python -m tests.distributed.scenarios NAME RESULT.json`."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaModel

from kernels_hub import Mode, kernelize, report

Outcome = tuple[nn.Module, float]


def build() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        use_cache=False,
    )
    return LlamaModel(config), torch.randint(0, 64, (2, 16))


def hidden(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(input_ids=tokens).last_hidden_state
    return out


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


def loss_curve(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Losses of three steps: wrong gradients show in the second."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        loss = hidden(model, tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def ddp_training() -> Outcome:
    model, tokens = build()
    expected = loss_curve(copy.deepcopy(model), tokens)
    kernelize(model, mode=Mode.TRAINING)
    return model, difference(loss_curve(DistributedDataParallel(model), tokens), expected)


def ddp_inference() -> Outcome:
    model, tokens = build()
    model.eval()
    with torch.no_grad():
        expected = hidden(model, tokens)
        wrapped = DistributedDataParallel(model)
        kernelize(wrapped, mode=Mode.INFERENCE)
        return model, difference(hidden(wrapped, tokens), expected)


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2_inference() -> Outcome:
    model, tokens = build()
    model.eval()
    with torch.no_grad():
        expected = hidden(model, tokens)
        kernelize(_sharded(model), mode=Mode.INFERENCE)
        return model, max(difference(hidden(model, tokens), expected) for _ in range(2))


def fsdp2_training() -> Outcome:
    model, tokens = build()
    expected = loss_curve(copy.deepcopy(model), tokens)
    kernelize(_sharded(model), mode=Mode.TRAINING)
    return model, difference(loss_curve(model, tokens), expected)


def fully_shard_after_kernelize() -> Outcome:
    """Packed weights must notice that FSDP2 moves the parameters under them."""
    model, tokens = build()
    model.eval()
    with torch.no_grad():
        expected = hidden(model, tokens)
        kernelize(model, mode=Mode.INFERENCE)
        _sharded(model)
        return model, max(difference(hidden(model, tokens), expected) for _ in range(2))


def tensor_parallel() -> Outcome:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, tokens = build()
    model.eval()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.no_grad():
        expected = hidden(model, tokens)
        for layer in model.layers:
            parallelize_module(
                layer,
                mesh,
                {
                    "mlp.gate_proj": ColwiseParallel(),
                    "mlp.up_proj": ColwiseParallel(),
                    "mlp.down_proj": RowwiseParallel(),
                },
            )
        kernelize(model, mode=Mode.INFERENCE)
        return model, difference(hidden(model, tokens), expected)


SCENARIOS: dict[str, Callable[[], Outcome]] = {
    f.__name__: f
    for f in (
        ddp_training,
        ddp_inference,
        fsdp2_inference,
        fsdp2_training,
        fully_shard_after_kernelize,
        tensor_parallel,
    )
}


def main(name: str, result: str) -> None:
    dist.init_process_group("gloo")
    try:
        model, error = SCENARIOS[name]()
        rows = report(model)
        Path(result).write_text(
            json.dumps(
                {
                    "error": error,
                    "swapped": [row.path for row in rows.swapped],
                    "reasons": [row.reason for row in rows.kept],
                }
            )
        )
        dist.barrier()  # neither process leaves while the other still talks to it
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # FSDP2's parameters hold on to the process group, whose threads PyTorch then tears down while the
    # interpreter ends: once in a while that aborts. The result is written; leave without that race.
    sys.stdout.flush()
    os._exit(0)
