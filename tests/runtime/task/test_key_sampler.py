"""Keys of some records are counted, after a request."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.dataflow.columns.column_key import ColumnKey
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.key_sampler import MOST_CHARACTERS, MOST_KEYS, SAMPLED, KeySampler

LINK = 3


def sampler() -> KeySampler:
    return KeySampler({LINK: lambda record: record[0]})


def batch(*keys: Any) -> RecordBatch:
    return RecordBatch([(key, 1) for key in keys])


def test_nothing_is_wanted_without_a_request_or_without_keys():
    keys = sampler()
    assert not keys.wanted
    keys.request()
    assert keys.wanted
    without = KeySampler({})
    without.request()
    assert not without.wanted
    assert without.take() == [0, []]


def test_the_keys_of_several_batches_are_counted():
    keys = sampler()
    keys.request()
    keys.sample(LINK, batch("a", "b", "a"))
    keys.sample(LINK, batch("a"))
    assert keys.take() == [4, [["'a'", 3], ["'b'", 1]]]
    assert keys.take() == [0, []]
    assert not keys.wanted


def test_only_some_records_of_a_large_batch_are_looked_at():
    seen = []
    keys = KeySampler({LINK: lambda record: seen.append(record) or record})
    keys.request()
    keys.sample(LINK, RecordBatch([7] * 10_000))
    assert not keys.wanted
    assert len(seen) == SAMPLED
    assert keys.take() == [SAMPLED, [["7", SAMPLED]]]


def test_batches_by_column_are_counted_too():
    keys = sampler()
    keys.request()
    keys.sample(LINK, RecordBatch.of_columns([["a", "a"], [1, 2]]))
    assert keys.take() == [2, [["'a'", 2]]]


def test_arrow_batches_are_counted_by_the_columns_of_their_key():
    keys = KeySampler({LINK: ColumnKey(["word"])})
    keys.request()
    keys.sample(LINK, ArrowBatch(pa.record_batch({"word": ["a", "b", "a"], "n": [1, 2, 3]})))
    assert keys.take() == [3, [["'a'", 2], ["'b'", 1]]]


def test_batches_of_links_without_a_key_are_left_out():
    keys = sampler()
    keys.request()
    keys.sample(LINK + 1, batch("a"))
    assert keys.wanted
    assert keys.take() == [0, []]


def test_a_selector_that_fails_and_a_key_that_cannot_be_counted_end_the_sampling():
    for record in (None, ([1], 1)):
        keys = sampler()
        keys.request()
        keys.sample(LINK, RecordBatch([record]))
        assert not keys.wanted
        assert keys.take() == [0, []]


class _Odd:
    def __repr__(self) -> str:
        raise ValueError


def test_texts_of_keys_are_short_and_few():
    keys = sampler()
    keys.request()
    keys.sample(LINK, batch("x" * 1000, "x" * 1000, _Odd(), *range(20)))
    total, rows = keys.take()
    assert (total, len(rows)) == (23, MOST_KEYS)
    assert rows[0][0] == "'" + "x" * (MOST_CHARACTERS - 2) + "…"
    assert rows[1] == ["a _Odd", 1]
