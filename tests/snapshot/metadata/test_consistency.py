"""Inconsistent manifests with a correct checksum, and files that are no manifests, are refused."""

from __future__ import annotations

import copy
import os
import random
import shutil
import struct
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import FORMAT
from penstock.snapshot.metadata.manifest_format import decode_manifest
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.store import Store

GOLDEN = Path(__file__).parents[2] / "golden" / "format-4"
MANIFEST = GOLDEN / "checkpoints" / "000012" / "manifest"


def golden_body() -> Any:
    return msgpack.unpackb(MANIFEST.read_bytes()[20:-16], strict_map_key=False)


def framed(body: Any, format: int = FORMAT) -> bytes:
    packed = msgpack.packb(body)
    frame = struct.pack(">8sIQ", b"PENSTOCK", format, len(packed)) + packed
    return frame + blake2b(frame, digest_size=16).digest()


def put(*path: Any) -> Callable[[Any], None]:
    """Put the last argument at the place that the others lead to."""
    *way, last, value = path

    def change(body: Any) -> None:
        for step in way:
            body = body[step]
        body[last] = value

    return change


KEYED, LOG = ("handles", 2, 2), ("handles", 2, 4, 1)
STATE = ("handles", 3, 7, "operator_state")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("parent", 7), "parent|int"),
        (put("parent", []), "parent"),
        (put("parent", ["l", "7"]), "parent"),
        (put("types", 7), "int"),
        (put("types", [7]), "int"),
        (put("created_ms", "now"), "created_ms is 'now'"),
        (put("created_ms", 10**18), "created_ms"),
        (put("number", "12"), "number is '12'"),
        (put("number", True), "number is True"),
        (put("job", None), "job is None"),
        (put("kind", "holiday"), "holiday"),
        (put("finished", 1), "finished is 1"),
        (put("enumerators", [1]), r"enumerators is \[1\]"),
        (put("sizes", [1, "2"]), "sizes.linked is '2'"),
        (put("operators", 0, 3, 10**9), "parallelism 1000000000"),
        (put("operators", 0, 3, 0), "parallelism 0"),
        (put("operators", 0, 0, 5), r"operators\[0\].uid is 5"),
        (put("handles", 0, 0, "none"), "an operator 'none' that is not listed"),
        (put("handles", 0, 1, 99), "subtask 99"),
        (put("handles", 0, 1, -1), "subtask -1"),
        (put(*KEYED, 0, -1), "key groups -1"),
        (put(*KEYED, 1, 10**6), "key groups 0 to 1000000"),
        (put(*KEYED, 2, ["s", 7]), r"states\[1\] is 7"),
        (put(*KEYED, 4, "/etc"), "'/etc' leads out"),
        (put(*KEYED, 4, "a/../../b"), "leads out"),
        (put(*KEYED, 5, 0, 0, "../../../secret"), "'../../../secret' leads out"),
        (put(*KEYED, 5, 0, 1, -5), "-5 bytes"),
        (put(*KEYED, 5, 0, 2, None), "checksum is None"),
        (put(*LOG, 7, [[9, 0, 1]]), "piece"),
        (put(*LOG, 7, [[0, 5, 1]]), "piece"),
        (put(*LOG, 4, "many"), "records is 'many'"),
        (put(*STATE, 0, 1, 0, "pending"), "two operator states with one name"),
        (put(*STATE, 0, 1, 1, "shared"), "shared"),
        (put(*STATE, 0, 1, 2, -1), "elements=-1"),
        (put(*STATE, 1, None), "operator state in 0 files"),
        (put("handles", 2, 7, "operator_state", 2, 0, 0, "/etc/passwd"), "leads out"),
        (put("committables", [["l", "u", 0, "1", 1, {}]]), "snapshot is '1'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(
    change: Callable[[Any], None], words: str
) -> None:
    body = golden_body()
    decode_manifest(framed(body), "m")
    change(body)
    with pytest.raises(StoreError, match=rf"not what format 4 says .*({words}).*\[m\]"):
        decode_manifest(framed(body), "m")


def test_whatever_is_altered_a_manifest_is_read_or_refused() -> None:
    rng = random.Random(1)
    odd = [None, True, -1, 10**12, 1.5, "", "../x", b"\0", [], [[]], {}, {"a": 1}, [None] * 9]
    whole, read = golden_body(), 0
    for _ in range(1500):
        body = copy.deepcopy(whole)
        for _ in range(rng.choice([1, 1, 3])):
            place = body
            while True:
                steps = list(place) if isinstance(place, dict) else list(range(len(place)))
                step = rng.choice(steps)
                if isinstance(place[step], list | dict) and place[step] and rng.random() < 0.8:
                    place = place[step]
                    continue
                place[step] = copy.deepcopy(rng.choice(odd))
                break
        try:
            decode_manifest(framed(body, rng.choice([1, 2, 3, FORMAT])), "m")
            read += 1
        except StoreError:
            pass
    assert 0 < read < 1500


@pytest.fixture
def job(tmp_path: Path) -> Store:
    shutil.copytree(GOLDEN, tmp_path / "job")
    return Store(tmp_path / "job")


def listed(store: Store) -> str:
    result = CliRunner().invoke(main, ["snapshots", "list", str(store.paths.root), "--verify"])
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def test_a_pipe_in_place_of_a_file_does_not_hang(job: Store) -> None:
    assert job.newest() is not None
    path = job.paths.manifest(12)
    path.unlink()
    os.mkfifo(path)
    assert f"it is no regular file [{path}]" in listed(job)
    body = golden_body()
    name = body["handles"][2][2][5][0][0]
    body["handles"][2][2][5][0][1] = 0
    path.unlink()
    path.write_bytes(framed(body))
    victim = job.paths.snapshot(12) / name
    victim.unlink()
    os.mkfifo(victim)
    assert f"it is no regular file [{victim}]" in listed(job)
    os.mkfifo(job.paths.root / "pipe")
    with pytest.raises(OSError, match=r"."):
        FileSystem().sync(job.paths.root / "pipe")


@pytest.mark.parametrize("name", ["job", "numbers"])
def test_deeply_nested_json_is_damage(job: Store, name: str) -> None:
    (job.paths.root / name).write_text("[" * 200_000)
    assert (
        f"the file is damaged, or was edited; put it back from a backup [{job.paths.root / name}]"
        in listed(job)
    )
