"""Each benchmark's core, at its smallest: it runs, its results are checked, its figures are there.

No time is asserted here. Figures are for `python -m bench`.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import connectors, operate
from bench.__main__ import main
from bench.common import harness, steadiness
from bench.latency import paced_source as paced
from bench.latency import shuffle as latency
from bench.latency.paced_source import PacedSource
from bench.snapshots import checkpoint, recovery
from bench.throughput import columns, scaling, scaling_report, wordcount
from bench.time import state, windows
from penstock.dataflow.source import Read, ReaderContext, Split
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).parents[2]


def quiet(_: str) -> None:
    """Progress is for people."""


def test_operate_acts_on_jobs_of_a_service():
    figures = operate.measure(
        rounds=1,
        pairs=1,
        phase_seconds=0.1,
        state_mb=1,
        operators=4,
        subtasks=2,
        queries=20,
        say=quiet,
    )
    assert figures["rescale_state_mb"] >= 1 and figures["submit_to_running_seconds"] > 0
    assert figures["page_ms"] == max(figures["all_page_ms"].values())
    assert len(figures["all_metrics_ratios"]) == 1 and figures["query_key_ms_p99"] > 0


def test_the_word_count_counts_every_word_and_is_compared_with_its_limit(tmp_path):
    figures = wordcount.measure(2_000, 1, 100, str(tmp_path), quiet)
    assert figures["words"] == 20_000
    assert figures["words_per_second"] > 0
    assert figures["cpu_ns_per_word"] > 0
    assert figures["limit_words_per_second"] > 0
    assert figures["rocksdb_files"] > 0
    assert {"ratio", "snapshots_completed", "peak_rss_mb", "startup_seconds"} <= figures.keys()
    assert list(tmp_path.iterdir()) == []


def test_a_word_count_with_a_wrong_count_has_no_figures(tmp_path):
    (tmp_path / "expected.json").write_text(json.dumps({"a": 2}))
    (tmp_path / "counted-0.json").write_text(json.dumps({"records": 1, "counts": {"a": 1}}))
    with pytest.raises(harness.WrongResultError):
        wordcount._check(tmp_path, tmp_path)


def test_the_latency_of_every_record_is_measured_and_half_of_them_are_remote(tmp_path):
    figures = latency.measure(500, 1.0, 200, str(tmp_path), quiet)
    assert figures["records"] == 250
    assert 50 < figures["remote_records"] < 200
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    assert figures["due_max_ms"] >= figures["p50_ms"]


def test_the_processor_time_of_hops_workers_and_state_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "LEAST_UPDATES", 100)
    figures = scaling.measure(200_000, 1, (1, 2), (1, 2), (1, 2), (1, 2), 0, quiet)
    ratios = {
        "cpu_per_hop_ratio_2_to_1",
        "cpu_per_hop_ratio_2_to_1_busy",
        "cpu_per_record_ratio_p2_to_p1",
    }
    assert ratios <= figures.keys()
    assert figures["start_cpu_seconds.p2"] > 0
    assert 0 < figures["start_seconds_p2"] < 600
    assert figures["pss_mb_per_worker_p2"] > 1
    assert figures["descriptors_p2"] > figures["descriptors_p1"]
    assert figures["cpu_us_per_update.1"] > 0 < figures["cpu_us_per_update.2"]
    written = scaling_report.keep(figures, tmp_path / "kept")
    assert [path.name for path in written] == ["scaling.json", "scaling.svg", "scaling.png"]
    assert json.loads(written[0].read_text()) == figures
    drawing = written[1].read_text()
    assert all(label in drawing for label in ("keyed hops", "workers", "memory for state"))


def test_a_slow_moment_is_from_before_it_to_after_it_and_as_long_again():
    looks = [(0.0, 1.0), (0.1, 1.0), (0.2, 9.0), (0.3, 9.0), (0.4, 1.0), (0.9, 1.0), (1.5, 3.9)]
    assert steadiness.slow_moments(looks) == [(0.1, pytest.approx(0.7))]
    assert steadiness.slow_moments([]) == []


def test_slow_moments_that_meet_are_one_and_may_begin_and_end_the_watch():
    usual = [(10.0 + i, 1.0) for i in range(9)]
    looks = [(0.0, 8.0), (1.0, 1.0), (1.5, 8.0), (2.0, 1.0), *usual, (19.0, 8.0)]
    assert steadiness.slow_moments(looks) == [(0.0, 3.0), (18.0, 20.0)]


def test_what_overlaps_a_slow_moment_is_told_and_how_much_of_the_time_was_slow():
    watch = steadiness.Watch()
    watch.take([[1.0, 2.0], [5.0, 6.0]])
    steady = [(0.0, 0.9), (2.1, 4.9), (6.1, 7.0)]
    slow = [(0.5, 1.1), (1.2, 1.3), (1.9, 9.0), (2.1, 5.0)]
    assert not any(watch.was_slow(*span) for span in steady)
    assert all(watch.was_slow(*span) for span in slow)
    assert watch.slow_percent(0.0, 10.0) == 20.0
    assert watch.slow_percent(5.5, 6.5) == 50.0


def test_the_watcher_looks_while_its_block_runs_and_ends_with_it():
    with steadiness.Watch() as watch:
        subprocess.run([sys.executable, "-c", "sum(range(1_000_000))"], check=True)
    assert watch._watcher.returncode == 0
    assert all(begin < end for begin, end in watch.moments)


def test_the_watcher_ends_when_what_is_measured_fails():
    watch = steadiness.Watch()
    with pytest.raises(KeyError), watch:
        raise KeyError
    assert watch._watcher.returncode == 0


def test_without_its_watcher_a_measurement_has_no_figures():
    watch = steadiness.Watch()
    with pytest.raises(harness.WrongResultError, match=r"ended with code -9: .* run again"), watch:
        watch._watcher.kill()


def test_on_a_machine_that_is_never_steady_there_is_latency_and_none_of_steady_moments(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(steadiness.Watch, "was_slow", lambda *_: True)
    figures = latency.measure(500, 1.0, None, str(tmp_path), quiet)
    assert figures["p99_ms"] > 0
    assert figures["steady_records"] == 0
    assert "steady_p99_ms" not in figures


def test_every_key_changes_between_two_measured_snapshots(tmp_path):
    figures = checkpoint.measure(50, 2, 0.2, str(tmp_path), quiet)
    for load in ("", "full_"):
        assert figures[f"{load}snapshots_completed"] >= 2
        assert figures[f"{load}keys_changed_min"] == 50
        assert figures[f"{load}bytes_total"] > 0
        assert figures[f"{load}duration_ms_p99"] > 0
        assert figures[f"{load}longest_pause_ms"] > 0


def test_snapshots_that_come_too_soon_are_taken_again_at_a_longer_interval(monkeypatch):
    asked = []

    def run(load, *_):
        asked.append(load.interval_seconds)
        if len(asked) < 3:
            raise checkpoint.TooSoonError
        return {"records_per_second": 1}

    monkeypatch.setattr(checkpoint, "_run", run)
    figures = checkpoint._run_long_enough(checkpoint.Load(5, 1.0, 2), None, quiet)
    assert asked == pytest.approx([1.0, 1.3, 1.69])
    assert figures == {"records_per_second": 1, "interval_seconds": 1.69}
    monkeypatch.setattr(checkpoint, "TRIES", 1)
    asked.clear()
    with pytest.raises(checkpoint.TooSoonError):
        checkpoint._run_long_enough(checkpoint.Load(5, 1.0, 2), None, quiet)
    assert asked == [1.0]


def test_every_task_works_again_after_a_killed_worker_and_nothing_is_lost(tmp_path):
    sizes = recovery.Size(20, 10), recovery.Size(40, 100)
    figures = recovery.measure(1, 500, 100, 7, sizes, str(tmp_path), quiet)
    for size in ("", "large_"):
        assert figures[f"{size}kills"] == figures[f"{size}restarts"] == 1
        assert figures[f"{size}seconds_until_detected"] > 0
        assert figures[f"{size}seconds_until_every_task"] >= recovery.RESTART_DELAY_SECONDS
        assert figures[f"{size}seconds_until_committed"] > 0
    assert figures["jobmanager_kills"] == 1
    assert figures["jobmanager_lost_rate"] == figures["jobmanager_doubled_rate"] == 0
    assert figures["jobmanager_seconds_without_snapshots"] > 0


def test_a_lost_or_doubled_number_is_an_error_of_the_recovery_benchmark(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "read-0").write_text("2")
    (tmp_path / "read-1").write_text("1")
    published = tmp_path / "out" / "part-1"
    published.write_text("0\n2\n1\n")
    recovery._check(tmp_path)
    for wrong, message in (("0\n1\n", "lost 1, doubled 0"), ("0\n1\n2\n2\n", "lost 0, doubled 1")):
        published.write_text(wrong)
        with pytest.raises(harness.WrongResultError, match=message):
            recovery._check(tmp_path)


def test_a_paced_source_gives_what_is_due_and_goes_on_from_a_position(tmp_path, monkeypatch):
    monkeypatch.setattr(paced, "time", SimpleNamespace(monotonic=lambda: 110.0))
    source = PacedSource(
        lambda subtask, parallelism: lambda first, count: list(range(first, first + count)),
        tmp_path / "stop",
        start=100.0,
        records_per_second=2.0,
        at_once=5,
    )
    reader = source.create_reader(ReaderContext("uid", 0, 2))
    reader.open(Split("0"), None)
    assert reader.read(4) == Read([0, 1, 2, 3], 4)
    # Five at once, and one for each of the ten seconds; that is all for a second.
    assert reader.read(100) == Read(list(range(4, 15)), 15, False, 1.0)
    waiting = reader.read(100)
    assert waiting.records == []
    assert waiting.wait_seconds == 1.0
    again = source.create_reader(ReaderContext("uid", 0, 2))
    again.open(Split("0"), 13)
    assert again.read(100).records == [13, 14]
    (tmp_path / "stop").touch()
    assert again.read(100).finished
    assert reader.read(100) == Read([], 15, True)


def test_a_percentile_is_a_value_that_occurred():
    assert harness.percentile(range(1, 101), 99) == 99
    assert harness.percentile([3, 1, 2], 50) == 2
    assert harness.percentile([7], 99.9) == 7


@pytest.mark.parametrize("content", [None, "", "cpu 1 2", "intr what"])
def test_what_the_host_took_is_none_where_it_is_not_told(tmp_path, monkeypatch, content):
    told = harness.machine()["stolen_percent"]
    assert told is None or 0 <= told <= 100
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)
    monkeypatch.setattr(harness, "Path", lambda _: stat)
    assert harness._stolen() == (0, 0)


def test_medians_are_taken_per_figure():
    rounds = [
        {"a": 1, "b": 1.0, "c": "x"},
        {"a": 5, "b": 2.0, "c": "y"},
        {"a": 3, "b": 9.0, "c": "z"},
    ]
    assert harness.median_figures(rounds) == {"a": 3, "b": 2.0, "c": "z"}


@pytest.mark.long
def test_jobs_between_spark_tables_are_measured_against_spark(tmp_path):
    # A session of its own, in a process of its own.
    done = subprocess.run(
        [sys.executable, "-m", "bench", "spark", "--quick", "--json", "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["rows"] == 2_000
    for name in ("source", "arrow", "pass_through", "count", "spark_stateful_python", "spark_sql"):
        assert figures[f"{name}_rows_per_second"] > 0
    ratios = {"ratio_to_spark_stateful_python", "ratio_to_spark_sql"}
    assert ratios | {"process_ratio_to_spark_stateful_python"} <= figures.keys()
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_the_benchmarks_are_listed_and_the_notes_know_them():
    done = subprocess.run(
        [sys.executable, "-m", "bench"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    listed = done.stdout + done.stderr
    notes = (ROOT / "docs" / "inside" / "benchmarks.md").read_text(encoding="utf-8")
    assert {"wordcount", "latency", "checkpoint", "recovery", "spark"} <= main.commands.keys()
    for name in main.commands:
        assert f"\n  {name} " in listed
        # What only draws has no figures.
        assert name == "plot" or f"\n| `{name}" in notes, name


def test_each_format_decodes_what_it_has_encoded():
    figures = connectors.measure(["formats"], 500, 1, None, quiet)
    rates = [name for name in figures if name.endswith("_per_second")]
    assert len(rates) == 2 * 10 + 1
    assert all(figures[name] > 0 for name in rates)
    assert figures["avro_registry_bytes"] == pytest.approx(figures["avro_bytes"] + 5)


def test_updates_timers_and_entries_of_maps_are_all_counted(tmp_path):
    figures = state.measure(6_000, 1, 100, str(tmp_path), quiet, "sqlite")
    assert figures["spilled_ratio_to_rocksdb"] > 0
    for name in ("value_state_updates", "spilled_value_state_updates", "timers"):
        assert figures[f"{name}_per_second"] > 0
    assert figures["large_map_cost_ratio"] > 0
    assert figures["spilled_state_mb"] > 0


def test_columns_are_summed_up_as_rows_and_compared_with_them(tmp_path):
    figures = columns.measure(4_000, 1, 100, str(tmp_path), quiet)
    assert figures["rows_per_second"] > 0 and figures["columns_per_second"] > 0
    assert figures["ratio_to_rows"] > 0 and figures["cpu_ratio_to_rows"] > 0
    assert list(tmp_path.iterdir()) == []


def test_each_record_is_in_its_windows_and_compared_with_the_word_count(tmp_path):
    figures = windows.measure(20_000, 1, 100, str(tmp_path), quiet)
    for shape in windows.SHAPES:
        assert figures[f"{shape}_records_per_second"] > 0
        assert figures[f"{shape}_results"] > 0
    assert figures["tumbling_ratio_to_wordcount"] > 0
    assert figures["sliding_inverse_ratio_to_tumbling"] > 0
