"""Shards and xorbs, damaged: read to their end, or refused as malformed."""

from __future__ import annotations

import io
import random

from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.server.xet.shard import ShardFile, read_shard
from kernels_hub.server.xet.xorb import CHUNK_LIMIT, XorbDecoder
from tests.fuzz.harness import budget, run
from tests.fuzz.mutations import mutate_bytes
from tests.server.xet_encode import Shard, Xorb, whole_file

ONE = Xorb([b"one" * 100, b"two" * 50, b"three"], [1, 2, 0])
TWO = Xorb([bytes(1000)])
SHARDS = [
    Shard([whole_file(ONE), whole_file(TWO)], [ONE, TWO]).body,
    Shard([whole_file(TWO)]).body,
    Shard([], [ONE]).body + b"a footer of an older client",
]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage bytes, or a record: 48 bytes dropped, repeated, or with another number in them."""
    if chance.random() < 0.4:
        return mutate_bytes(data, chance)
    records = [data[at : at + 48] for at in range(0, len(data), 48)]
    at = chance.randrange(len(records))
    match chance.randrange(5):
        case 0:
            del records[at]
        case 1:
            records.insert(at, records[at])
        case 2:
            records[at] = chance.choice((b"\xff" * 48, bytes(48), chance.randbytes(48)))
        case _:
            spot = chance.choice((32, 36, 40, 44))
            number = chance.choice((0, 1, 2, 3, 1 << 31, (1 << 32) - 1, 1 << 20)).to_bytes(4, "little")
            records[at] = records[at][:spot] + number + records[at][spot + 4 :]
    return b"".join(records)


def test_any_shard_is_read_or_refused() -> None:
    def parse(data: bytes) -> list[ShardFile]:
        found = list(read_shard(io.BytesIO(data)))
        assert all(file.size >= 0 and len(file.sha256) == 64 for file in found)
        return found

    run("xet_shard", SHARDS, mutate, parse, (MetadataError,), count=budget())


def test_any_xorb_is_decoded_or_refused() -> None:
    def parse(data: bytes) -> list[int]:
        decoder, total = XorbDecoder(), 0
        for start in range(0, len(data), 100):
            total += sum(len(chunk) for chunk in decoder.feed(data[start : start + 100]))
        assert total <= len(data) * 300 + CHUNK_LIMIT
        try:
            return decoder.finish(ONE.hash)
        except IntegrityError:
            return []  # well-formed, with other chunks

    run("xet_shard", [ONE.body], mutate_bytes, parse, (MetadataError,), count=budget(), least_parsed=0.2)
