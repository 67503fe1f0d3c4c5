"""Aggregations over columns against a naive model, with snapshots, restores and rescaling."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from penstock import (
    ArrowSource,
    GraphError,
    JobError,
    Row,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from penstock.runtime.operators.columns import aggregation_operator, running_aggregation
from penstock.testing import OperatorHarness
from tests.sizes import sized

BERLIN = pa.timestamp("ms", "Europe/Berlin")
NOON = datetime(2024, 1, 1, 12)
AGGREGATES = {
    "total": ("n", "sum"),
    "rows": ("*", "count"),
    "known": ("n", "count"),
    "least": ("n", "min"),
    "most": ("x", "max"),
    "mean": ("n", "mean"),
    "real": ("x", "sum"),
}


class Group:
    """The aggregates of one group, computed row by row."""

    def __init__(self):
        self.rows, self.known, self.total, self.least = 0, 0, 0, None
        self.real, self.most = 0, None

    def add(self, row):
        self.rows += 1
        if row["n"] is not None:
            self.known += 1
            self.total += row["n"]
            self.least = row["n"] if self.least is None else min(self.least, row["n"])
        self.real += row["x"]
        self.most = row["x"] if self.most is None else max(self.most, row["x"])
        return self

    def row(self):
        known = self.known
        return {
            "total": self.total if known else None,
            "rows": self.rows,
            "known": known,
            "least": self.least,
            "most": self.most,
            "mean": self.total / known if known else None,
            "real": self.real,
        }


def rows_of(rng, count, keys=7):
    return [
        {
            "k": rng.choice(["a", "b", "c", None, "long key"][: min(keys, 5)]),
            "j": rng.randrange(2),
            "n": rng.randrange(-50, 50) if rng.random() < 0.8 else None,
            "x": rng.uniform(-1e3, 1e3),
        }
        for _ in range(count)
    ]


def as_columns(stream):
    return stream.map_batches(
        lambda batch: batch,
        keep_rows=True,
        schema={"k": "string", "j": "int64", "n": "int64", "x": "float64"},
    )


def running(*keys, columns=True):
    def piece(stream):
        stream = as_columns(stream) if columns else stream
        return stream.group_by(*keys).agg(**AGGREGATES)

    return piece


def feed(harness, rows):
    harness.process_elements([(row, None) for row in rows])


def restored(rng, harness):
    """The harness, or another one that begins from a snapshot of it."""
    chance = rng.random()
    if chance < 0.6:
        return harness
    return OperatorHarness.restore(harness.snapshot(), parallelism=rng.randrange(1, 4))


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("keys", [["k"], ["k", "j"]])
@pytest.mark.parametrize("seed", range(4))
def test_running_aggregates_are_those_of_rows_one_by_one(seed, keys, columns):
    rng = random.Random(seed)
    harness = OperatorHarness(running(*keys, columns=columns))
    groups = defaultdict(Group)
    for _ in range(8):
        rows = rows_of(rng, rng.randrange(1, 60))
        if not columns:  # the types of columns follow from the values
            rows[0]["n"] = 1
        feed(harness, rows)
        expected = defaultdict(list)
        for row in rows:
            key = tuple(row[name] for name in keys)
            expected[key].append(groups[key].add(row).row())
        got = defaultdict(list)
        for row in harness.extract_output_values():
            got[tuple(row.pop(name) for name in keys)].append(row)
        assert got == expected
        harness = restored(rng, harness)


def test_a_key_of_many_columns_with_many_values_does_not_mix_groups():
    rng = random.Random(3)
    names = [f"k{place}" for place in range(9)]
    columns = [rng.sample(range(1000), 1000) for _ in names]
    rows = [dict(zip(names, key, strict=True)) for key in zip(*columns, strict=True)]
    harness = OperatorHarness(lambda stream: stream.group_by(*names).agg(n=("*", "count")))
    for count in (1, 2):
        rng.shuffle(rows)
        feed(harness, rows)
        assert harness.extract_output_values() == [{**row, "n": count} for row in rows]


def test_groups_beyond_the_limit_are_saved_and_loaded_again(monkeypatch):
    monkeypatch.setattr(running_aggregation, "MAX_GROUPS", 3)
    harness = OperatorHarness(lambda stream: stream.group_by("k").agg(n=("*", "count")))
    for _ in range(3):
        feed(harness, [{"k": key} for key in range(10)])
        rows = harness.extract_output_values()
    assert sorted((row["k"], row["n"]) for row in rows) == [(key, 3) for key in range(10)]


def test_a_column_may_become_real_numbers():
    harness = OperatorHarness(
        lambda stream: stream.group_by("k").agg(s=("n", "sum"), low=("n", "min"))
    )
    feed(harness, [{"k": 1, "n": 2}, {"k": 2, "n": 3}])
    harness = OperatorHarness.restore(harness.snapshot())
    feed(harness, [{"k": 1, "n": 0.5}])
    assert harness.extract_output_values() == [{"k": 1, "s": 2.5, "low": 0.5}]
    harness = OperatorHarness.restore(harness.snapshot())
    feed(harness, [{"k": 1, "n": 1}, {"k": 3, "n": 1}])
    assert harness.extract_output_values() == [
        {"k": 1, "s": 3.5, "low": 0.5},
        {"k": 3, "s": 1.0, "low": 1.0},
    ]


# ---- rows, however they are divided into batches

VALUES = [
    *range(-3, 3),
    *(2**62, -(2**62), 2**63 - 1),
    *(0.5, -2.25, 1e300),
    *(True, False, None),
    np.int16(7),
    np.float32(0.5),
]
#: Values that `sum` refuses, beside those that make a sum too large.
WRONG = ["5", Decimal(1), 2**63, [1]]
KEYS = [1, 2, "a", "b", None, True, 2.5, b"a", NOON, NOON.date(), Decimal("0.5")]


def random_rows(rng, count, wrong):
    values = VALUES if rng.random() < 0.3 else VALUES[:6] + VALUES[9:]
    keys = rng.choice([KEYS, KEYS[:2], KEYS[2:4], [7]])
    rows = []
    for _ in range(count):
        row = {"k": rng.choice(keys), "other": "x"}
        if rng.random() < 0.7:
            row["n"] = rng.choice(WRONG if rng.random() < wrong else values)
        if rng.random() < 0.2:
            row["any"] = rng.choice(["text", None, [1]])
        rows.append(row)
    return rows


def outcome(piece, rows, sizes):
    """What is emitted for rows that come in slices; a text if the job fails."""
    harness, begin, emitted = OperatorHarness(piece), 0, []
    try:
        for size in sizes:
            harness.process_elements([(row, 3) for row in rows[begin : begin + size]])
            begin += size
        harness.process_watermark(100)
        emitted = harness.extract_output_values()
    except JobError as error:
        return type(error).__name__
    return emitted


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("seed", range(sized(15, 1000)))
def test_the_division_of_rows_into_batches_changes_nothing(seed, windows):
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randrange(1, 40), rng.choice([0, 0, 0.05]))

    def piece(stream):
        groups = stream.group_by("k")
        if windows:
            groups = groups.window(TumblingEventTimeWindows.of(10))
        return groups.agg(
            sum=("n", "sum"),
            min=("n", "min"),
            max=("n", "max"),
            mean=("n", "mean"),
            known=("n", "count"),
            rows=("*", "count"),
            any=("any", "count"),
            missing=("missing", "sum"),
        )

    one_by_one = outcome(piece, rows, [1] * len(rows))
    for _ in range(3):
        sizes = []
        while sum(sizes) < len(rows):
            sizes.append(rng.randrange(1, rng.choice([3, 50])))
        assert outcome(piece, rows, sizes) == one_by_one, (rows, sizes)


def test_records_of_all_classes_with_names_are_rows():
    harness = OperatorHarness(
        lambda stream: stream.group_by("k").agg(n=("n", "sum"), rows=("*", "count")),
        types=[NamedRecord, DataRecord],
    )
    records = [NamedRecord(1, 2), DataRecord(1, 3), Row(k=1, n=4), {"k": 1, "n": 5}, Row(k=1)]
    harness.process_elements([(record, None) for record in records])
    assert [(row["n"], row["rows"]) for row in harness.extract_output_values()] == [
        (2, 1),
        (5, 2),
        (9, 3),
        (14, 4),
        (14, 5),
    ]


class NamedRecord(NamedTuple):
    k: int
    n: int


@dataclass
class DataRecord:
    k: int
    n: int


def test_a_field_that_no_row_has_is_reported(caplog, monkeypatch):
    monkeypatch.setattr(aggregation_operator, "_MANY", 4)

    def fields_reported(rows):
        caplog.clear()
        harness = OperatorHarness(
            lambda stream: stream.group_by("k").agg(n=("n", "sum"), m=("m", "sum"))
        )
        feed(harness, rows)
        feed(harness, rows)
        return [record.getMessage() for record in caplog.records]

    assert fields_reported([{"k": 1, "n": 1}]) == []
    assert fields_reported([{"k": 1, "n": 1}, {"k": 2}]) == [
        "operator 'Aggregate Columns': none of 4 rows has a field 'm', so all its values are null. "
        "Is the name right?"
    ]
    assert fields_reported([{"k": 1, "n": 1}, {"k": 2, "m": None}]) == []


def test_a_field_that_no_row_has_is_reported_at_the_end_of_a_short_job(caplog):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True)
    rows = env.from_collection([{"k": 1, "n": 2}])
    totals = rows.group_by("k").agg(total=("m", "sum"))
    assert list(totals.execute_and_collect()) == [{"k": 1, "total": None}]
    assert "none of 1 rows has a field 'm'" in caplog.text


NAN = float("nan")


def extremes(values):
    """The smallest and the largest value, and the sum, as the documentation defines them."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if value == value]
    if not known:
        return None, None, None
    return min(numbers, default=NAN), max(numbers, default=NAN), sum(known)


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("seed", range(sized(6, 100)))
def test_minima_and_maxima_leave_out_nan(seed, windows, columns):
    rng = random.Random(seed)

    def piece(stream):
        if columns:
            schema = {"k": "int64", "x": "float64"}
            stream = stream.map_batches(lambda batch: batch, keep_rows=True, schema=schema)
        groups = stream.group_by("k")
        groups = groups.window(TumblingEventTimeWindows.of(10)) if windows else groups
        return groups.agg(low=("x", "min"), high=("x", "max"), total=("x", "sum"))

    harness, values, got = OperatorHarness(piece), defaultdict(list), []
    expected = []
    for _ in range(6):
        rows = [
            {"k": rng.randrange(12), "x": rng.choice([NAN, NAN, None, 1.5, -2.0, float("inf")])}
            for _ in range(rng.randrange(1, 60))
        ]
        harness.process_elements([(row, 3) for row in rows])
        for row in rows:
            values[row["k"]].append(row["x"])
            expected.append((row["k"], *extremes(values[row["k"]])))
        got += harness.extract_output_values()
        harness = restored(rng, harness)
    harness.process_watermark(100)
    got += harness.extract_output_values()
    if windows:
        expected = [(key, *extremes(of_key)) for key, of_key in values.items()]
    rows = [(row["k"], row["low"], row["high"], row["total"]) for row in got]
    assert Counter(map(repr, rows)) == Counter(map(repr, expected))


def test_a_sum_is_refused_only_if_it_is_too_large_after_some_row():
    def sums(*values):
        harness = OperatorHarness(
            lambda stream: as_columns(stream).group_by("k").agg(s=("n", "sum"))
        )
        rows = [{"k": key, "j": 1, "n": n, "x": 0.0} for key, n in values]
        feed(harness, rows)
        return [row["s"] for row in harness.extract_output_values()]

    large = 2**62
    assert sums(("a", large), ("b", large), ("a", large - 1)) == [large, large, 2 * large - 1]
    assert sums(("a", large), ("a", -large), ("a", large)) == [large, 0, large]
    with pytest.raises(JobError, match="does not fit into 64 bits"):
        sums(("a", large), ("a", large), ("a", -large))


def windowed(assigner, columns=True):
    def piece(stream):
        stream = as_columns(stream) if columns else stream
        return stream.group_by("k").window(assigner).agg(**AGGREGATES)

    return piece


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(100),
        TumblingEventTimeWindows.of(100, 30),
        SlidingEventTimeWindows.of(100, 25),
        SlidingEventTimeWindows.of(100, 70, 10),
    ],
)
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_windows_have_each_row_once_and_drop_late_rows(assigner, columns, seed):
    rng = random.Random(seed)
    harness = OperatorHarness(windowed(assigner, columns))
    windows = defaultdict(Group)
    now, watermark, got = -200, -(10**9), []
    for _ in range(12):
        rows = rows_of(rng, 20)
        rows[0]["n"] = 1
        times = [now + rng.randrange(-150, 200) for _ in rows]
        for part in (slice(0, 7), slice(7, None)):
            rows[part.start]["n"] = 1  # the types of columns follow from the values
            pairs = list(zip(rows[part], times[part], strict=True))
            harness.process_elements(pairs)
            for row, time in pairs:
                for window in assigner.windows_at(time, None):
                    if window.end - 1 > watermark:
                        windows[row["k"], window.start, window.end].add(row)
            harness = restored(rng, harness)
        now += rng.randrange(120)
        watermark = now
        harness.process_watermark(now)
        got += harness.extract_output_records()
    harness.end_input()
    got += harness.extract_output_records()
    results = {}
    for record in got:
        row = record.value
        place = row.pop("k"), row.pop("window_start"), row.pop("window_end")
        assert place not in results and record.timestamp == place[2] - 1
        results[place] = row
    assert results == {place: group.row() for place, group in windows.items()}


def test_a_window_that_has_fired_leaves_no_state():
    harness = OperatorHarness(windowed(TumblingEventTimeWindows.of(10)))
    harness.process_element({"k": "a", "j": 1, "n": 1, "x": 1.0}, timestamp=3)
    harness = OperatorHarness.restore(harness.snapshot())
    harness.process_watermark(9)
    assert len(harness.extract_output_values()) == 1
    harness = OperatorHarness.restore(harness.snapshot())
    assert harness.num_keyed_state_entries() == 0
    harness.end_input()
    assert harness.extract_output_values() == []


#: Values of keys, and the types of their columns.
KEY_TYPES = {
    **{
        str(kind): ([5, 7], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16())
    },
    "uint32": ([2**32 - 1, 7], pa.uint32()),
    "uint64": ([2**64 - 1, 2**63 + 5, 7], pa.uint64()),
    "float": ([0.5], pa.float32()),
    "double": ([1e300, -0.0], pa.float64()),
    "bool": ([True], pa.bool_()),
    "decimal": ([Decimal("1.50"), Decimal("12345.75")], pa.decimal128(10, 2)),
    "large decimal": ([Decimal("1.5")], pa.decimal256(50, 1)),
    "date": ([NOON.date()], pa.date32()),
    "date in milliseconds": ([NOON.date()], pa.date64()),
    "time": ([NOON.time()], pa.time32("s")),
    "timestamp": ([NOON], pa.timestamp("s")),
    "timestamp in nanoseconds": ([NOON], pa.timestamp("ns")),
    "timestamp with a zone": ([NOON.replace(tzinfo=UTC)], BERLIN),
    "duration": ([timedelta(1)], pa.duration("s")),
    "string": (["a"], pa.string()),
    "large string": (["a", ""], pa.large_string()),
    "string view": (["a", ""], pa.string_view()),
    "binary": ([b"a"], pa.binary()),
    "binary view": ([b"a", b""], pa.binary_view()),
    "large binary": ([b"a"], pa.large_binary()),
    "fixed size binary": ([b"ab"], pa.binary(2)),
    "dictionary": (["a", "b"], pa.dictionary(pa.int32(), pa.string())),
    "dictionary of numbers": ([5], pa.dictionary(pa.int64(), pa.int16())),
    "null": ([], pa.null()),
}


def with_types(stream):
    """The rows of a stream, each with the type of the column `k` as a text."""

    def add_types(batch):
        types = pa.array([str(batch["k"].type)] * batch.num_rows)
        return batch.append_column("type", types)

    return stream.map_batches(add_types)


def counted_by_key(kind):
    def piece(stream):
        columns = stream.map_batches(lambda batch: batch, keep_rows=True, schema={"k": kind})
        return with_types(
            columns.group_by("k").window(TumblingEventTimeWindows.of(10)).agg(n=("*", "count"))
        )

    return piece


@pytest.mark.parametrize("name", KEY_TYPES)
def test_windows_keep_the_type_of_a_key_column(name):
    values, kind = KEY_TYPES[name]
    values = [*values, None]
    harness = OperatorHarness(counted_by_key(kind))
    expected = pa.array(values, kind).to_pylist()
    # The keys of the first window are null, and the second window fires after a restore.
    for start, keys in ((0, [None]), (10, values)):
        harness.process_elements([({"k": key}, start) for key in keys])
    harness.process_watermark(9)
    assert [(row["k"], row["type"]) for row in harness.extract_output_values()] == [
        (None, str(kind))
    ]
    for parallelism in (2, 1):
        harness = OperatorHarness.restore(harness.snapshot(), parallelism=parallelism)
    harness.process_watermark(19)
    rows = harness.extract_output_values()
    assert {row["type"] for row in rows} == {str(kind)}
    assert Counter(row["k"] for row in rows) == Counter(expected)


def test_a_window_may_have_more_keys_than_the_index_of_a_dictionary_column():
    def piece(stream):
        columns = stream.map_batches(encoded, keep_rows=True)
        windows = columns.group_by("k").window(TumblingEventTimeWindows.of(10))
        return with_types(windows.agg(n=("*", "count")))

    def encoded(batch):
        kind = pa.dictionary(pa.int8(), pa.string())
        return pa.record_batch({"k": pa.array(batch["k"].to_pylist(), kind)})

    harness = OperatorHarness(piece)
    for first in range(0, 300, 100):
        harness.process_elements([({"k": str(first + key)}, 0) for key in range(100)])
    harness.process_watermark(9)
    rows = harness.extract_output_values()
    assert len(rows) == 300
    assert rows[0]["type"] == "dictionary<values=string, indices=int32, ordered=0>"


@pytest.mark.parametrize(
    ("batches", "kind"),
    [
        ([[1], [2.5]], "double"),
        ([[None], ["a"]], "string"),
        ([[NOON.date()], [None]], "date32[day]"),
        ([[Decimal("1.5")], [Decimal("100.25")]], "decimal128(5, 2)"),
    ],
)
def test_batches_with_other_types_have_a_type_in_common(batches, kind):
    harness = OperatorHarness(
        lambda stream: with_types(
            stream.group_by("k").window(TumblingEventTimeWindows.of(10)).agg(n=("*", "count"))
        )
    )
    for batch in batches:
        harness.process_elements([({"k": key}, 0) for key in batch])
    harness.process_watermark(9)
    rows = harness.extract_output_values()
    assert [(row["k"], row["type"]) for row in rows] == [(k, kind) for b in batches for k in b]


def test_keys_without_a_type_in_common_become_rows():
    harness = OperatorHarness(
        lambda stream: (
            stream.group_by("k", "j").window(TumblingEventTimeWindows.of(10)).agg(n=("*", "count"))
        )
    )
    for key in (1, "a", None):
        harness.process_element({"k": key, "j": 2}, timestamp=0)
    harness.process_watermark(9)
    records = harness.extract_output_records()
    assert [record.value for record in records] == [
        {"k": key, "j": 2, "window_start": 0, "window_end": 10, "n": 1} for key in (1, "a", None)
    ]
    assert {record.timestamp for record in records} == {9}


def refused(piece, *rows, timestamp=None):
    harness = OperatorHarness(piece)
    for row in rows:
        harness.process_element(row, timestamp=timestamp)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"k": 1, "n": "text"}, "sum of field 'n' cannot be computed: it is a str, and must be"),
        ({"k": 1, "n": 2**63}, "sum of field 'n' cannot be computed: .* into 64 bits"),
        ({"n": 1}, "lacks a column of the key, which is k"),
        ({"k": [1], "n": 1}, "key"),
        (5, "."),
    ],
)
def test_rows_that_cannot_be_aggregated_are_refused(row, words):
    with pytest.raises((JobError, KeyError, AttributeError), match=words):
        refused(lambda stream: stream.group_by("k").agg(s=("n", "sum")), row)


def test_a_sum_that_does_not_fit_is_an_error_and_not_a_wrong_number():
    with pytest.raises(JobError, match="does not fit into 64 bits"):
        refused(
            lambda stream: stream.group_by("k").agg(s=("n", "sum")),
            {"k": 1, "n": 2**62},
            {"k": 1, "n": 2**62},
        )


def test_a_window_needs_event_times():
    with pytest.raises((JobError, GraphError), match="timestamp"):
        refused(windowed(TumblingEventTimeWindows.of(10)), {"k": "a", "j": 1, "n": 1, "x": 1.0})


def test_a_job_aggregates_batches_between_processes_of_one_program(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process(True)
    env.set_parallelism(2)
    env.enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path)
    table = pa.table({"k": [i % 13 for i in range(5000)], "n": list(range(5000))})
    stream = env.from_source(ArrowSource(table), None, "table")
    totals = stream.group_by("k").agg(total=("n", "sum"), rows=("*", "count"))
    rows = list(totals.execute_and_collect())
    assert len(rows) == 5000
    last = {row["k"]: row for row in sorted(rows, key=lambda row: row["rows"])}
    assert {k: row["total"] for k, row in last.items()} == {
        k: sum(range(k, 5000, 13)) for k in range(13)
    }
