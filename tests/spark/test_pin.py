"""The description of a pin is refused if it is damaged, since it says which rows are read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.spark.source.pin import Pin, load_pin, write_record
from penstock.dataflow.errors import Recoverability, StoreError


@pytest.fixture
def pinned(tmp_path: Path) -> Pin:
    data = tmp_path / "data" / "1.parquet"
    data.parent.mkdir()
    pq.write_table(pa.table({"n": list(range(9))}), data, row_group_size=3)
    write_record(
        tmp_path, False, pa.schema([("n", pa.int64())]), {data.name: pq.read_metadata(data)}
    )
    pin = load_pin(tmp_path)
    assert pin.rows == 9
    return pin


def test_each_flipped_bit_of_a_description_is_refused(pinned: Pin) -> None:
    path = pinned.folder / "pin.json"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(StoreError, match="it is damaged") as caught:
            load_pin(pinned.folder)
        assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_description_without_a_checksum_is_read(pinned: Pin) -> None:
    path = pinned.folder / "pin.json"
    record = json.loads(path.read_text())
    del record["checksum"]
    path.write_text(json.dumps(record, indent=1))
    assert load_pin(pinned.folder) == pinned
    path.unlink()
    with pytest.raises(StoreError, match="the pin cannot be read"):
        load_pin(pinned.folder)
