"""Counted work: the same each time, more when the engine does more, and bounds that say so."""

import pytest
from click.testing import CliRunner

from bench.counts import work as counts
from bench.counts.jobs import SCENARIOS
from penstock.runtime.operators.stateless import MapOperator
from penstock.runtime.serialization.batch_codec import BatchCodec
from penstock.runtime.serialization.record_batch import RecordBatch


def test_the_same_work_counts_the_same_each_time() -> None:
    first, second = counts.measure(["map_chain"]), counts.measure(["map_chain"])
    assert set(first) == {
        "map_chain.calls",
        "map_chain.bytecodes",
        "map_chain.peak_bytes",
        "map_chain.messages",
    }
    # What another thread has in memory at the peak counts, too.
    peaks = [figures.pop("map_chain.peak_bytes") for figures in (first, second)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.05)
    assert first == second
    # Each record goes through at least the first map.
    assert first["map_chain.calls"] > 1


def test_an_operator_that_does_more_for_a_record_is_seen(monkeypatch) -> None:
    before = counts.measure(["map_chain"])
    bounds = {name: {"was": value, "bound": value * 1.05} for name, value in before.items()}
    assert counts.compare(before, bounds) == ([], [])
    plain = MapOperator.process

    def wasteful(self, batch):
        rows = [record for record in batch.rows()]  # noqa: C416 - a loop per record
        return plain(self, RecordBatch(rows))

    monkeypatch.setattr(MapOperator, "process", wasteful)
    above, below = counts.compare(counts.measure(["map_chain"]), bounds)
    assert below == []
    assert any(line.startswith("map_chain.bytecodes grew from") for line in above)


def test_a_snapshot_is_counted_by_changed_keys() -> None:
    figures = counts.measure(["snapshot"])
    # Without a loop in Python over each key: the work is done by columns.
    assert 0 < figures["snapshot.calls"] < 5


def test_messages_of_a_small_snapshot_are_its_barriers_and_acknowledgements() -> None:
    # Two sources have a channel to the other worker, and there are four tasks.
    assert counts.measure(["small_snapshot"])["small_snapshot.messages"] == 2 + 4


def test_batches_that_hold_fewer_records_are_seen(monkeypatch) -> None:
    before = counts.measure(["one_by_one"])["one_by_one.messages"]
    few = counts.measure(["join"])["join.messages"]
    # Half of the single records go to the other worker, each in a batch of its own.
    assert few < 0.01 < 0.4 < before


def test_bytecodes_are_told_by_function() -> None:
    found = counts.bytecodes(SCENARIOS["encode"])
    assert {code.co_qualname for code in found} >= {BatchCodec.encode.__qualname__}


def test_a_figure_above_its_bound_says_from_what_to_what() -> None:
    bounds = {
        "a": {"was": 10.0, "bound": 10.5},
        "b": {"was": 10.0, "bound": 10.5},
        "c": {"was": 10.0, "bound": 10.5},
    }
    above, below = counts.compare({"a": 10.4, "b": 12.0, "c": 8.0, "d": 1.0}, bounds)
    assert above == [
        "b grew from 10 to 12 per record; its bound is 10.5",
        "d is 1 per record, and has no bound",
    ]
    assert below == ["c fell from 10 to 8 per record"]


def test_bounds_are_kept_per_version_of_python(tmp_path) -> None:
    path = tmp_path / "bounds.toml"
    assert counts.read(path) == {}
    counts.write({"x.calls": 10.0, "x.peak_bytes": 0.002}, path, "3.11")
    counts.write({"x.calls": 20.0}, path, "3.12")
    counts.write({"x.calls": 12.0}, path, "3.11")
    assert counts.read(path) == {
        "3.11": {"x.calls": {"was": 12.0, "bound": 12.6}},
        "3.12": {"x.calls": {"was": 20.0, "bound": 21.0}},
    }


def test_the_recorded_bounds_are_of_the_figures_that_there_are() -> None:
    names = {
        f"{name}.{what}" for name in SCENARIOS for what in ("calls", "bytecodes", "peak_bytes")
    } | {f"{name}.messages" for name, scenario in SCENARIOS.items() if scenario.sends}
    recorded = counts.read()
    assert recorded
    for version, bounds in recorded.items():
        assert set(bounds) == names, version
        assert all(one["bound"] > one["was"] for one in bounds.values())


@pytest.mark.parametrize(("python", "code"), [("3.11", 1), ("3.99", 0)])
def test_the_program_fails_above_a_bound_and_only_prints_where_there_is_none(
    python, code, monkeypatch, tmp_path
) -> None:
    path = tmp_path / "bounds.toml"
    counts.write({"map_chain.calls": 1.0}, path, "3.11")
    monkeypatch.setattr(counts, "measure", lambda: {"map_chain.calls": 2.0})
    monkeypatch.setattr(counts, "read", lambda: counts.tomllib.loads(path.read_text()))
    monkeypatch.setattr(counts, "_python", lambda: python)
    result = CliRunner().invoke(counts.main)
    assert result.exit_code == code
    if code:
        assert "map_chain.calls grew from 1 to 2 per record" in result.output
        assert "--record" in result.output
    else:
        assert "no bounds for Python 3.99" in result.output
