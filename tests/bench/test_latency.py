"""Latency under load: what arrives is checked, figures are there, and percentiles are right.

No time is asserted here: on a machine with other work on it any would be wrong.
"""

import json
from array import array
from collections import Counter
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.common.harness import WrongResultError
from bench.latency import paced_source as paced
from bench.latency import under_load as latency_load
from bench.latency.under_load import Setting, distribution
from penstock.dataflow.source import ReaderContext, Split


def quiet(_: str) -> None:
    """Progress is for people."""


def test_percentiles_are_durations_that_occurred() -> None:
    took = Counter({1_000: 50, 2_000: 48, 30_000: 2})
    assert distribution(took, "due_") == {
        "due_p50_ms": 1.0,
        "due_p99_ms": 30.0,
        "due_p999_ms": 30.0,
        "due_max_ms": 30.0,
    }
    assert distribution(Counter({7: 1}))["p50_ms"] == 0.007
    with pytest.raises(WrongResultError, match="nothing was measured for due_"):
        distribution(Counter(), "due_")


def test_every_record_is_measured_and_some_change_the_process(tmp_path) -> None:
    setting = Setting(shuffles=3, interval_ms=200, keys=101)
    # Where the machine stands still for all of a run, no snapshot is due in it.
    for _ in range(5):
        figures = latency_load.measure(0.5, setting, 0.5, 4_000, str(tmp_path), quiet)
        if figures["snapshots_completed"]:
            break
    assert (figures["load"], figures["shuffles"], figures["snapshots"]) == (0.5, 3, True)
    assert figures["records_per_second"] == 2_000
    assert 0 < figures["remote_records"] < figures["records"]
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    # Nothing is made before it is due.
    assert figures["due_max_ms"] >= figures["max_ms"]
    assert figures["snapshots_completed"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_each_combination_is_measured_and_written_down(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(latency_load, "sustainable", lambda *_: 3_000.0)
    monkeypatch.setattr(latency_load, "SHUFFLES", (1,))
    monkeypatch.setattr(latency_load, "ONE_IN", 101)
    monkeypatch.setattr(latency_load, "WARM_UP_SECONDS", 0.2)
    runs: list[latency_load._Run] = []
    real = latency_load._run
    monkeypatch.setattr(latency_load, "_run", lambda *of: runs.append(real(*of)) or runs[-1])
    figures = latency_load.measure_all(
        0.4, Setting(keys=11), str(tmp_path), str(tmp_path / "results"), quiet, (0.5,)
    )
    written = json.loads((tmp_path / "results" / "latency_load.json").read_text())
    assert written == figures
    assert {"date", "versions", "cores", "python"} <= figures.keys()
    names = ("load", "shuffles", "snapshots")
    assert [tuple(one[name] for name in names) for one in figures["runs"]] == [
        (0.5, 1, True),
        (0.5, 1, False),
    ]
    assert all({"p50_ms", "p99_ms", "max_ms"} <= one.keys() for one in figures["runs"])
    # One in 101 of what was read, but for those of the warm-up.
    read = sum(samples[-1][1] for samples in runs[-1].progress)
    assert 0 < figures["filter_records"] <= read / 101 + latency_load.WORKERS
    assert figures["filter_load"] == latency_load.FILTER_LOAD


def test_a_run_is_over_when_the_last_source_to_begin_has_had_its_time(tmp_path, monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=lambda: 0)
    for module in (latency_load, paced):
        monkeypatch.setattr(module, "time", clock)

    def reader(subtask: int) -> latency_load._Reader:
        # Each in a process of its own.
        source = latency_load._Source(latency_load._Maker(11), tmp_path, 1_000.0, 2.0)
        return source.create_reader(ReaderContext("uid", subtask, 2))

    first, second = reader(0), reader(1)
    first.open(Split("0"), None)
    now[0] = 110.0
    assert first.read(10).records
    assert not (tmp_path / "stop").exists()
    second.open(Split("1"), None)
    for now[0] in (110.0, 111.9):
        assert not any(one.read(10).finished for one in (first, second))
    assert not (tmp_path / "stop").exists()
    now[0] = 112.0
    assert not first.read(10).finished
    assert first.read(10).finished and second.read(10).finished


def test_a_lost_or_doubled_record_is_an_error() -> None:
    def done(*sinks: list[int]) -> latency_load._Run:
        ids = [array("q", sink) for sink in sinks]
        # The sources have read two records each: 0 and 2, 1 and 3.
        return latency_load._Run(ids, ids, ids, [[(0.0, 0), (1.0, 2)], [(0.0, 0), (1.0, 2)]])

    latency_load._check(Setting(), done([0, 3], [1, 2]))
    latency_load._check(Setting(one_in=3), done([0], [3]))
    for wrong in (([0, 3], [1]), ([0, 3], [1, 1])):
        with pytest.raises(WrongResultError, match="and should be 4"):
            latency_load._check(Setting(), done(*wrong))


def test_a_source_that_falls_behind_has_not_kept_to_its_schedule() -> None:
    def done(lag: float) -> latency_load._Run:
        # 100 records a second of each of two sources; the second one is behind.
        samples = [
            [(10.0, 0)] + [(10 + n / 10, round((n / 10 - late) * 100)) for n in range(5, 31)]
            for late in (0.0, lag)
        ]
        return latency_load._Run([], [], [], samples)

    assert latency_load._late_seconds(done(0.0), 200.0) == pytest.approx(0.0)
    assert latency_load._late_seconds(done(0.25), 200.0) == pytest.approx(0.25)
    assert latency_load._read_per_second(done(0.0)) == pytest.approx(200.0)


def test_a_rate_that_is_not_kept_is_lowered(monkeypatch) -> None:
    monkeypatch.setattr(latency_load, "_run", lambda setting, rate, *_: rate)
    monkeypatch.setattr(latency_load, "_read_per_second", lambda _: 1000.0)
    kept = 1000.0 * latency_load.LOWER**2
    monkeypatch.setattr(latency_load, "_late_seconds", lambda _, rate: float(rate > kept + 1e-6))
    assert latency_load.sustainable(Setting(), None, quiet) == pytest.approx(kept)


def test_a_load_that_is_no_number_is_refused_with_what_it_may_be() -> None:
    result = CliRunner().invoke(main, ["latency", "--load", "much"])
    assert result.exit_code == 2
    assert "'much' is neither a number nor the word all" in result.output
