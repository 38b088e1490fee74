"""Xorbs and shards: what is well formed comes out as it went in, everything else is refused."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.errors import IntegrityError, MetadataError
from kernels_hub.server.xet.hashing import hash_from_hex, hash_to_hex, xorb_hash
from kernels_hub.server.xet.rebuild import rebuild
from kernels_hub.server.xet.shard import read_shard
from kernels_hub.server.xet.spool import HOUR, Area, Spool
from kernels_hub.server.xet.xorb import CHUNK_LIMIT, XorbDecoder
from tests.server.xet_encode import (
    SHA256,
    VERIFIED,
    File,
    Shard,
    Xorb,
    chunk_header,
    encode_chunk,
    whole_file,
)

chunks = st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(0, 2)), min_size=1, max_size=12)


def decode(body: bytes, expected: bytes, piece: int = 1 << 20) -> list[bytes]:
    decoder = XorbDecoder()
    found = [chunk for at in range(0, len(body), piece) for chunk in decoder.feed(body[at : at + piece])]
    assert decoder.finish(expected) == [len(chunk) for chunk in found]
    return found


@given(chunks, st.integers(1, 400))
def test_a_xorb_is_decoded_whatever_the_pieces(chunks, piece):
    xorb = Xorb([data for data, _ in chunks], [scheme for _, scheme in chunks])
    assert decode(xorb.body, xorb.hash, piece) == xorb.chunks


@given(st.binary(min_size=1, max_size=2000), st.integers(1, 2))
@settings(max_examples=50)
def test_large_chunks_of_every_scheme(seed, scheme):
    data = (seed * (CHUNK_LIMIT // len(seed) + 1))[:CHUNK_LIMIT]
    xorb = Xorb([data, data[:-1], data[:-2], data[:-3]], [scheme] * 4)
    assert decode(xorb.body, xorb.hash) == xorb.chunks


def test_hashes_are_those_of_the_specification():
    # The example of the specification, and a xorb that hf_xet 1.8.0 made of one file of one byte.
    digest = bytes(range(32))
    assert hash_to_hex(digest) == "07060504030201000f0e0d0c0b0a090817161514131211101f1e1d1c1b1a1918"
    assert hash_from_hex(hash_to_hex(digest)) == digest
    assert xorb_hash([]) == bytes(32)
    assert (
        hash_to_hex(Xorb([b"x"]).hash) == "06ce6a7a21b7b0a1d5f78961c0121bad538b70f033b096dfa588f37bc0805276"
    )


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "G" * 64, "0" * 63 + "\n", "A" * 64, "../" + "0" * 61]
)
def test_what_is_no_hash(text):
    with pytest.raises(MetadataError, match="not a Xet hash"):
        hash_from_hex(text)


def test_a_footer_is_skipped_and_bounded():
    xorb = Xorb([b"one", b"two"])
    assert decode(xorb.body + b"XETBLOB" + b"f" * 1000, xorb.hash) == xorb.chunks
    assert decode(xorb.body + b"XETBLOB" + b"f" * 1000, xorb.hash, piece=11) == xorb.chunks
    with pytest.raises(MetadataError, match="footer has more"):
        decode(xorb.body + b"XETBLOB" + b"f" * 1_000_000, xorb.hash)


LONG = b"a" * CHUNK_LIMIT
FRAME = lz4.frame.compress(b"abcd" * 100)
BAD_XORBS = {
    "empty": (b"", "holds no chunk"),
    "cut in a header": (Xorb([b"one"]).body[:5], "ends inside chunk 0"),
    "cut in a chunk": (Xorb([b"one", b"two"]).body[:-1], "ends inside chunk 1"),
    "a version to come": (chunk_header(3, 0, 3, version=1) + b"one", "version 1, expected 0"),
    "an unknown scheme": (chunk_header(3, 3, 3) + b"one", "scheme 3"),
    "no bytes": (chunk_header(0, 0, 3) + b"one", "has 0 bytes"),
    "an empty chunk": (chunk_header(3, 0, 0) + b"one", "claims 0 bytes"),
    "a chunk too long": (chunk_header(3, 0, CHUNK_LIMIT + 1) + b"one", "claims 131073 bytes"),
    "compressed too long": (chunk_header(2 * CHUNK_LIMIT + 1, 1, 3) + b"one", "has 262145 bytes"),
    "longer than it says": (chunk_header(4, 0, 3) + b"four", "header says 3"),
    "a bomb": (
        chunk_header(len(lz4.frame.compress(LONG * 4)), 1, 9) + lz4.frame.compress(LONG * 4),
        "or more",
    ),
    "shorter than it says": (chunk_header(len(FRAME), 1, 401) + FRAME, "to 400 bytes"),
    "no frame": (chunk_header(8, 1, 3) + b"no frame", "no LZ4 frame"),
    "a frame cut": (chunk_header(len(FRAME) - 4, 1, 400) + FRAME[:-4], "truncated"),
    "two frames": (chunk_header(2 * len(FRAME), 1, 400) + FRAME * 2, "bytes after its LZ4 frame"),
    "too many chunks": ((chunk_header(1, 0, 1) + b"x") * 8193, "more than 8192 chunks"),
    "too many bytes": (encode_chunk(LONG, 1) * 513, "more than 67108864 bytes"),
}


@pytest.mark.parametrize("body, message", BAD_XORBS.values(), ids=BAD_XORBS.keys())
def test_malformed_xorbs(body, message):
    with pytest.raises(MetadataError, match=message):
        decode(body, Xorb([b"one"]).hash)


def test_another_xorb_than_the_one_named():
    with pytest.raises(IntegrityError, match=f"expected {hash_to_hex(bytes(32))}"):
        decode(Xorb([b"one"]).body, bytes(32))


@given(chunks, st.data())
def test_a_xorb_with_a_byte_changed_is_refused_or_the_same(chunks, data):
    xorb = Xorb([chunk for chunk, _ in chunks], [scheme for _, scheme in chunks])
    body = bytearray(xorb.body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(body), xorb.hash)
    except MetadataError:
        return
    assert found == xorb.chunks


# -- shards -----------------------------------------------------------------------------------------

ONE = Xorb([b"one", b"two", b"three"])
BAD_SHARDS = {
    "empty": (b"", "ends inside its header"),
    "another tag": (b"x" + Shard([]).body[1:], "tag of a Xet shard"),
    "another version": (Shard([]).body[:32] + b"\x03" + Shard([]).body[33:], "version 3"),
    "cut in a file": (Shard([whole_file(ONE)]).body[:100], "inside its list of files"),
    "cut before the xorbs": (Shard([whole_file(ONE)], [ONE]).body[:-150], "inside its list of xorbs"),
    "no end": (Shard([], []).body[:-48], "inside its list of xorbs"),
    "no sha256": (Shard([File(b"", [], VERIFIED)]).body, "without its sha256"),
    "an empty segment": (Shard([File(b"", [(ONE.hash, 1, 1, 3)])]).body, "chunks 1 to 1"),
    "a segment backwards": (Shard([File(b"", [(ONE.hash, 2, 1, 3)])]).body, "chunks 2 to 1"),
    "no length": (Shard([File(b"", [(ONE.hash, 0, 1, 0)])]).body, "0 bytes"),
}


@pytest.mark.parametrize("body, message", BAD_SHARDS.values(), ids=BAD_SHARDS.keys())
def test_malformed_shards(body, message):
    with pytest.raises(MetadataError, match=message):
        list(read_shard(io.BytesIO(body)))


def test_a_claim_of_four_billion_entries_allocates_nothing():
    body = bytearray(Shard([whole_file(ONE)]).body)
    body[48 + 36 : 48 + 40] = b"\xff" * 4
    with pytest.raises(MetadataError, match="more than a shard can hold"):
        list(read_shard(io.BytesIO(bytes(body))))


@given(st.binary(max_size=400))
def test_random_bytes_are_no_shard(tail):
    with pytest.raises(MetadataError):
        list(read_shard(io.BytesIO(Shard([]).body[:48] + tail.replace(b"\xff", b"\xfe"))))


# -- spool and rebuild ------------------------------------------------------------------------------


def keep(area: Area, xorb: Xorb) -> None:
    with area.part() as part:
        part.write(b"".join(xorb.chunks))
        area.keep(part, xorb.hash, [len(chunk) for chunk in xorb.chunks])


def spooled(tmp_path: Path, *xorbs: Xorb) -> Area:
    area = Spool(tmp_path).area("repository", Spool(tmp_path).hour())
    for xorb in xorbs:
        keep(area, xorb)
    return area


def test_files_are_rebuilt_from_ranges_of_several_xorbs(tmp_path):
    many = [Xorb([bytes([i]) * (i + 1), b"tail"]) for i in range(40)]
    area = spooled(tmp_path, ONE, *many)
    content = b"twothree" + b"".join(bytes([i]) * (i + 1) for i in range(40)) + b"one"
    segments = [
        (ONE.hash, 1, 3, 8),
        *((xorb.hash, 0, 1, i + 1) for i, xorb in enumerate(many)),
        (ONE.hash, 0, 1, 3),
    ]
    (file,) = read_shard(io.BytesIO(Shard([File(content, segments, SHA256)], [ONE]).body))
    assert file.size == len(content)
    output = io.BytesIO()
    rebuild(file, area, output)
    assert output.getvalue() == content


BAD_FILES = {
    "not uploaded": (File(b"", [(bytes(32), 0, 1, 3)]), MetadataError, "was not uploaded"),
    "beyond its chunks": (File(b"", [(ONE.hash, 2, 4, 5)]), MetadataError, "chunk 4 of xorb .* which has 3"),
    "another length": (File(b"", [(ONE.hash, 0, 2, 7)]), MetadataError, "have 6 bytes, the shard says 7"),
    "another sha256": (
        File(b"onetwo", [(ONE.hash, 0, 1, 3)]),
        IntegrityError,
        "chunks make a file with sha256",
    ),
}


@pytest.mark.parametrize("wrong, error, message", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_files_that_do_not_add_up(tmp_path, wrong, error, message):
    (file,) = read_shard(io.BytesIO(Shard([wrong]).body))
    with pytest.raises(error, match=message):
        rebuild(file, spooled(tmp_path, ONE), io.BytesIO())


def test_the_empty_file(tmp_path):
    (file,) = read_shard(io.BytesIO(Shard([File(b"", [])]).body))
    rebuild(file, spooled(tmp_path), output := io.BytesIO())
    assert (file.size, output.getvalue()) == (0, b"")


def test_a_part_that_is_not_kept_leaves_nothing(tmp_path):
    area = spooled(tmp_path)
    with suppress(RuntimeError), area.part() as part:
        part.write(b"half")
        part.flush()
        assert area.size() == 4
        raise RuntimeError
    assert area.size() == 0
    assert list(area.folder.iterdir()) == []


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: bytes(len(data)), lambda data: b"ab"]
)
def test_a_damaged_xorb_counts_as_missing(tmp_path, damage):
    area = spooled(tmp_path, ONE)
    assert area.holds(ONE.hash)
    (path,) = area.folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert not area.holds(ONE.hash)
    with pytest.raises(MetadataError, match="damaged"), area.open(ONE.hash):
        pass
    keep(area, ONE)
    assert area.holds(ONE.hash)


def test_areas_are_swept_when_old_and_idle(tmp_path):
    now = [1_000_000 * HOUR]
    spool = Spool(tmp_path, clock=lambda: now[0])
    old, busy = spool.area("old", spool.hour()), spool.area("busy", spool.hour())
    for area in (old, busy):
        keep(area, ONE)
        os.utime(area.folder, (now[0], now[0]))
    assert spool.sweep() == 0
    now[0] += 5 * HOUR
    os.utime(busy.folder, (now[0], now[0]))
    assert spool.sweep() == 1
    assert not old.folder.parent.exists()
    assert busy.holds(ONE.hash)
    with pytest.raises(MetadataError, match="session is over"):
        spool.area("old", spool.hour() - 73)
    with pytest.raises(MetadataError, match="session is over"):
        spool.area("old", spool.hour() + 1)
