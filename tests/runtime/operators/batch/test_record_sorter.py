"""The sorter of batch mode: in memory, and in runs on disk."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.errors import StoreError
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.operators.batch.record_sorter import RecordSorter
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry


@dataclass(frozen=True)
class Visit:
    user: str
    pages: tuple[int, ...]


CODEC = Codec(TypeRegistry([Visit]))


def _record(rng: random.Random, number: int) -> Any:
    kinds = [number, f"text {number}", None, [number, {"a": (1,)}], Visit("ada", (number,))]
    return rng.choice(kinds)


@pytest.mark.parametrize("memory_bytes", [1, 2_000_000, 10**9])
@pytest.mark.parametrize("seed", range(3))
def test_records_come_by_key_then_time_then_order(tmp_path: Path, seed: int, memory_bytes: int):
    rng = random.Random(seed)
    sorter = RecordSorter(CODEC, tmp_path / "sort", memory_bytes)
    expected = []
    while len(expected) < 9_000:
        size = rng.randrange(1, 900)
        rows = [_record(rng, len(expected) + i) for i in range(size)]
        keys = [canonical(rng.randrange(40)) for _ in rows]
        times = [rng.randrange(5) for _ in rows]
        input = rng.randrange(2)
        start = len(expected)
        expected += [
            (key, time, start + i, input, row)
            for i, (key, time, row) in enumerate(zip(keys, times, rows, strict=True))
        ]
        sorter.add(keys, times, input, rows)
    assert (sorter.runs > 2) == (memory_bytes == 1)
    assert list(map(tuple, sorter.sorted())) == sorted(expected, key=lambda one: one[:3])
    assert list(sorter.sorted()) == []
    sorter.close()
    assert not (tmp_path / "sort").exists() or list((tmp_path / "sort").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "sort").write_text("a file")
    sorter = RecordSorter(CODEC, tmp_path / "sort", 1)
    with pytest.raises(StoreError, match="could not be sorted on disk"):
        sorter.add([b"k"] * 3_000, [0] * 3_000, 0, list(range(3_000)))
