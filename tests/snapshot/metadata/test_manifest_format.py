"""The format of a manifest: round trips, damage is detected, names are safe."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataflow.errors import JobError, StoreError
from penstock.dataflow.sink import Committable
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.handles import (
    FileRecord,
    KeyedHandle,
    LogHandle,
    OperatorHandle,
    OperatorStateEntry,
    OperatorStateHandle,
    SnapshotBytes,
    StateMode,
)
from penstock.snapshot.metadata.manifest import (
    FORMAT,
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)
from penstock.snapshot.metadata.manifest_format import MAGIC, decode_manifest, encode_manifest
from penstock.snapshot.metadata.schema import FieldSchema, RecordKind, RecordSchema
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.storage.in_flight_log import BARRIER, BATCH, frame
from penstock.snapshot.storage.job_paths import JobPaths

HERE = Path(__file__).parents[2]
GOLDEN = HERE / "golden"

# The example of docs/reference/snapshot-format.md.
SMALL = Manifest(
    job="demo",
    lineage="00c0ffee",
    parent=None,
    number=SnapshotNumber(1),
    kind=SnapshotKind.CHECKPOINT,
    created_ms=1_700_000_000_000,
    attempt=1,
    version="0.1.0",
    fingerprint="5eed",
    operators=(OperatorEntry("src", "Source", "source", 1, 128, True),),
    handles=(OperatorHandle("src", 0, small=[["part-0", 42]]),),
    enumerators={"src": []},
)

# What tests/golden holds, by format. All is for ever: a new format gets its own beside the others.
GOLDEN_FOLDER = "count.0f3d0ca4b315014c.0.2"
GOLDEN_FILES = (
    FileRecord(f"{GOLDEN_FOLDER}/000007.sst", 24, "ee1fb2a113864b53294907cda7c36c08"),
    FileRecord(f"{GOLDEN_FOLDER}/CURRENT", 16, "5ec7a8415941c1a25908c98fb7691a62"),
)
GOLDEN_1 = Manifest(
    job="word count",
    lineage="0123456789abcdef",
    parent=("fedcba9876543210", 7),
    number=SnapshotNumber(12),
    kind=SnapshotKind.SAVEPOINT,
    created_ms=1_754_000_000_123,
    attempt=2,
    version="0.1.0",
    fingerprint="a1b2c3d4e5f60718",
    operators=(
        OperatorEntry("lines", "read lines", "source", 2, 128, True),
        OperatorEntry("split", "split", "flat_map", 2, 128, False),
        OperatorEntry("count", "count words", "reduce", 1, 128, True),
        OperatorEntry("größe/äöü", "write", "sink", 1, 128, True),
    ),
    handles=(
        OperatorHandle("lines", 0, small=[["a.txt", 1024], ["b.txt", None]]),
        OperatorHandle("lines", 1, small=[["c.txt", {"offset": 7, "line": b"\x00\xff"}]]),
        OperatorHandle(
            "count",
            0,
            KeyedHandle(0, 128, ("sum", "timers"), None, GOLDEN_FOLDER, GOLDEN_FILES),
        ),
        OperatorHandle("größe/äöü", 0, KeyedHandle(0, 128, ("s",), b"\x01\x02\x03")),
    ),
    enumerators={"lines": [["d.txt", None], ["e.txt", 1.5]], "ticks": {"next": -3}},
    committables=(
        Committable("0123456789abcdef", "größe/äöü", 0, 11, 1, {"file": "part-11", "rows": 3}),
        Committable("0123456789abcdef", "größe/äöü", 0, 12, 2, ["part-12", True]),
    ),
    types=(RecordSchema("words:Count"), RecordSchema("words:Line.Inner")),
    sizes=SnapshotBytes(24, 16),
    finished=True,
    format=1,
)

# Format 2 has logs of back-edges, and how far the end-of-input hooks of a task have come.
LOG_FOLDER = f"{GOLDEN_FOLDER}.log1"
LOG_FILES = (
    FileRecord(f"{LOG_FOLDER}/000000", 22, "0d259e55aaf0453144ab77708ff324d3"),
    FileRecord(f"{LOG_FOLDER}/000001", 75, "29aee19b018c2eaf6aad30b87dc38368"),
)
INLINE_LOG = bytes.fromhex("00000006 00 92 00 93 01 02 03")
LOGS = (
    LogHandle("split", 0, 1, "rebalance", 3, len(INLINE_LOG), INLINE_LOG),
    LogHandle("count", 0, 0, "hash", 5, 78, None, ((0, 0, 22), (1, 19, 75)), LOG_FILES),
)
GOLDEN_2 = replace(
    GOLDEN_1,
    operators=(
        *GOLDEN_1.operators[:2],
        OperatorEntry("count", "count words", "keyed_process", 1, 128, True),
        *GOLDEN_1.operators[3:],
    ),
    handles=(
        *GOLDEN_1.handles[:2],
        replace(GOLDEN_1.handles[2], logs=LOGS, ended=2, emitted=True),
        *GOLDEN_1.handles[3:],
    ),
    format=2,
)

# Format 3 has the fields of record classes.
GOLDEN_3 = replace(
    GOLDEN_2,
    types=(
        RecordSchema(
            "words:Count",
            RecordKind.DATACLASS,
            (FieldSchema("word", "str"), FieldSchema("größe", "int | None")),
        ),
        RecordSchema("words:Line.Inner", RecordKind.NAMED_TUPLE, None),
        RecordSchema("words:Style", RecordKind.ENUM, (FieldSchema("BOLD", "1"),)),
        RecordSchema("words:Gone"),
    ),
    format=3,
)

# Format 4 has operator state, and the kinds of keyed states.
STATE_FILE = FileRecord(f"{GOLDEN_FOLDER}.state", 18, "df996e4b33e198dd3310b5573b3abf5c")
GOLDEN_4 = replace(
    GOLDEN_3,
    handles=(
        *GOLDEN_3.handles[:2],
        replace(
            GOLDEN_3.handles[2],
            keyed=KeyedHandle(
                0,
                128,
                ("sum", "timers"),
                None,
                GOLDEN_FOLDER,
                GOLDEN_FILES,
                (StateKind.REDUCING, StateKind.TIMER),
                (0,),
            ),
            operator_state=OperatorStateHandle(
                (OperatorStateEntry("rules", StateMode.BROADCAST, 2),), None, (STATE_FILE,)
            ),
        ),
        replace(
            GOLDEN_3.handles[3],
            keyed=KeyedHandle(0, 128, ("s",), b"\x01\x02\x03", kinds=(StateKind.VALUE,)),
            operator_state=OperatorStateHandle(
                (
                    OperatorStateEntry("pending", StateMode.SPLIT, 2),
                    OperatorStateEntry("offsets", StateMode.UNION, 1),
                ),
                bytes.fromhex("00000001 01 00000001 02 00000002 a161"),
            ),
        ),
    ),
    format=4,
)


def reframed(data: bytes, format: int | None = None, body: bytes | None = None) -> bytes:
    """The same manifest with another format or body, and a right checksum."""
    _, old_format, length = struct.unpack_from(">8sIQ", data)
    body = data[20 : 20 + length] if body is None else body
    frame = struct.pack(">8sIQ", MAGIC, old_format if format is None else format, len(body)) + body
    return frame + hashlib.blake2b(frame, digest_size=16).digest()


def test_what_is_encoded_is_decoded_again() -> None:
    for manifest in (SMALL, GOLDEN_4):
        assert decode_manifest(encode_manifest(manifest), "m") == manifest


def test_equal_manifests_give_equal_bytes() -> None:
    backwards = dict(reversed(GOLDEN_2.enumerators.items()))
    assert encode_manifest(replace(GOLDEN_2, enumerators=backwards)) == encode_manifest(GOLDEN_2)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(uid=st.text(), value=plain, inline=st.none() | st.binary(), finished=st.booleans())
def test_any_plain_value_comes_back_with_its_type(
    uid: str, value: Any, inline: bytes | None, finished: bool
) -> None:
    manifest = replace(
        SMALL,
        operators=(OperatorEntry(uid, "", "keyed process", 2, 128, True),),
        handles=(OperatorHandle(uid, 1, KeyedHandle(0, 5, ("a",), inline), value),),
        enumerators={uid: value},
        committables=(Committable("l", uid, 0, 1, 1, value),),
        finished=finished,
    )
    again = decode_manifest(encode_manifest(manifest), "m")
    assert again == manifest
    assert repr(again) == repr(manifest)


def test_every_truncation_is_found() -> None:
    data = encode_manifest(SMALL)
    for length in range(len(data)):
        with pytest.raises(StoreError, match=r"truncated.*\[some/manifest\]"):
            decode_manifest(data[:length], "some/manifest")


def test_every_altered_byte_is_found() -> None:
    data = encode_manifest(SMALL)
    for at in range(len(data)):
        for flip in (0x01, 0x80):
            altered = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            with pytest.raises(StoreError, match=r"no.*manifest|altered|truncated") as caught:
                decode_manifest(altered, "some/manifest")
            assert caught.value.path == "some/manifest"
            assert "upgrade" not in str(caught.value)


def test_bytes_after_the_end_are_found() -> None:
    with pytest.raises(StoreError, match="altered"):
        decode_manifest(encode_manifest(SMALL) + b"\0", "m")


def test_another_file_is_not_taken_for_a_manifest() -> None:
    with pytest.raises(StoreError, match="not a manifest"):
        decode_manifest(b"PAR1 and so on, for more than a header", "m")


def test_a_newer_format_says_which_and_to_upgrade() -> None:
    with pytest.raises(StoreError, match=rf"format 7, .* up to {FORMAT}: upgrade"):
        decode_manifest(reframed(encode_manifest(SMALL), format=7), "m")


def test_an_intact_frame_with_another_body_is_refused() -> None:
    for body in (b"", b"\x80", b"\x93\x01\x02\x03", b"\xc1", b"\x01\x02"):
        with pytest.raises(StoreError, match="not what format 4 says"):
            decode_manifest(reframed(encode_manifest(SMALL), body=body), "m")
    with pytest.raises(StoreError, match="not what format 0 says"):
        decode_manifest(reframed(encode_manifest(SMALL), format=0), "m")


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, object(), 2**64, [1, (2,)]])
def test_a_value_that_would_not_come_back_is_refused_by_name(value: Any) -> None:
    with pytest.raises(JobError, match=r"enumerator's state(?s:.)*operator: ticks"):
        encode_manifest(replace(SMALL, enumerators={"ok": 1, "ticks": value}))
    with pytest.raises(JobError, match=r"committable's payload(?s:.)*operator: out"):
        encode_manifest(replace(SMALL, committables=(Committable("l", "out", 0, 1, 1, value),)))
    with pytest.raises(JobError, match=r"operator's state(?s:.)*operator: src"):
        encode_manifest(replace(SMALL, handles=(OperatorHandle("src", 0, small=value),)))


def test_a_value_of_our_own_that_does_not_fit_is_refused_too() -> None:
    with pytest.raises(JobError, match="a value does not fit"):
        encode_manifest(replace(SMALL, created_ms=2**64))


@pytest.mark.parametrize(
    "manifest", [GOLDEN_1, GOLDEN_2, GOLDEN_3, GOLDEN_4], ids=lambda m: str(m.format)
)
def test_the_golden_manifests_decode_for_ever(manifest: Manifest) -> None:
    path = JobPaths(GOLDEN / f"format-{manifest.format}").manifest(12)
    assert decode_manifest(path.read_bytes(), path) == manifest


def test_format_4_is_still_written_byte_for_byte() -> None:
    assert FORMAT == 4, "a new format needs golden files of its own beside these"
    assert encode_manifest(GOLDEN_4) == JobPaths(GOLDEN / "format-4").manifest(12).read_bytes()


def test_all_files_of_an_operator_are_told_by_its_handle() -> None:
    assert GOLDEN_2.handles[2].files == (*GOLDEN_FILES, *LOG_FILES)
    assert OperatorHandle("a", 0, logs=LOGS).files == LOG_FILES
    assert GOLDEN_4.handles[2].files == (*GOLDEN_FILES, *LOG_FILES, STATE_FILE)
    assert OperatorHandle("a", 0).files == ()


def hexdump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:04x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {text}")
    return "\n".join(lines)


def test_the_worked_examples_of_the_format_are_what_is_written() -> None:
    page = (HERE.parent / "docs" / "reference" / "snapshot-format.md").read_text()
    codec = Codec(TypeRegistry([]))
    log = (
        frame(BATCH, codec.encode_batch([("a", 1), ("b", 1)]))
        + frame(BARRIER, b"12 checkpoint")
        + frame(BATCH, codec.encode_batch([("a", 2)]))
    )
    shown = re.findall(r"```hexdump\n(.*?)\n```", page, re.DOTALL)
    assert shown == [hexdump(encode_manifest(SMALL)), hexdump(log)]


def test_names_are_made_in_one_place() -> None:
    paths = JobPaths(Path("/jobs/words"))
    assert str(paths.manifest(12)) == "/jobs/words/checkpoints/000012/manifest"
    assert str(paths.snapshot(1_234_567)) == "/jobs/words/checkpoints/1234567"
    assert paths.task(12, "count", 0, 2) == paths.snapshot(12) / GOLDEN_FOLDER
    assert paths.log(12, "count", 0, 2, 1) == paths.snapshot(12) / LOG_FOLDER
    assert paths.spill(2, 3, 0, 1) == paths.work(2) / "back-edge.3.0.1"
    assert paths.task_work(2, "count", 0) == paths.root / "work" / "2" / GOLDEN_FOLDER
    assert paths.staging.parent == paths.lock.parent == paths.job.parent == paths.numbers.parent
    assert paths.is_temporary(paths.temporary(paths.manifest(1), 77).name)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec=None), max_size=300), st.integers(0, 999), st.integers(1, 999))
def test_any_uid_gives_a_safe_short_name(uid: str, subtask: int, attempt: int) -> None:
    name = JobPaths.task_name(uid, subtask, attempt)
    assert re.fullmatch(r"[A-Za-z0-9_-]{0,40}\.[0-9a-f]{16}\.[0-9]+\.[0-9]+", name)


def test_uids_that_look_alike_have_different_names() -> None:
    uids = ["a/b", "a_b", "a.b", "A_b", "a" * 300, "a" * 301, "", "..", "\ud800", "ä", "a\u0308"]
    assert len({JobPaths.task_name(uid, 0, 1).lower() for uid in uids}) == len(uids)
    assert JobPaths.task_name("a", 1, 11) != JobPaths.task_name("a", 11, 1)


def test_only_names_of_our_own_are_numbers() -> None:
    assert JobPaths.number_of("000012") == 12
    assert JobPaths.number_of("1234567") == 1_234_567
    for name in ("12", "0000012", "00001x", "-00001", "٠٠٠٠١٢", "000012.tmp", "", "lost+found"):
        assert JobPaths.number_of(name) is None


def test_a_path_is_located_whatever_part_of_the_folder_it_names() -> None:
    paths = JobPaths(Path("/jobs/words"))
    assert JobPaths.locate(paths.manifest(12)) == (paths, 12)
    assert JobPaths.locate(paths.snapshot(12)) == (paths, 12)
    assert JobPaths.locate(paths.root) == (paths, None)
    assert JobPaths.locate(Path("/backup/000012")) == (JobPaths(Path("/backup/000012")), None)
