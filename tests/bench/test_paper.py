"""The paper's evaluation: statistics, model, plots, tables, and each kind of run at its smallest.

No time is asserted here. Figures are for `python -m bench paper`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.common.harness import WrongResultError
from bench.paper import cost_model as paper_model
from bench.paper import evaluation as paper
from bench.paper import jobs as paper_jobs
from bench.paper import plots
from bench.paper import report as paper_report
from bench.paper import scaling as paper_scaling
from bench.paper.programs import Job
from bench.paper.statistics import compare, completed_share, median_interval, medians, order, ratios
from penstock import CheckpointingMode
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).parents[2]
PROTOCOLS = ("abs", "synchronous", "chandy_lamport")


def quiet(_: str) -> None:
    """Progress is for people."""


# ---- order and estimator


def test_a_baseline_runs_before_every_two_protocols_and_at_the_end():
    for rounds in (1, 2, 5):
        row = order(PROTOCOLS, rounds)
        assert row[0] == row[-1] == "none"
        assert "none none" not in " ".join(row)
        between = " ".join(row).split("none")
        assert max(len(names.split()) for names in between) == 2
        runs = [name for name in row if name != "none"]
        for number in range(rounds):
            assert sorted(runs[3 * number : 3 * number + 3]) == sorted(PROTOCOLS)


def test_the_order_differs_between_rounds_and_is_that_of_its_seed():
    rounds = {tuple(order(PROTOCOLS, 1, seed)) for seed in range(20)}
    assert len(rounds) == 6
    assert order(PROTOCOLS, 5, 3) == order(PROTOCOLS, 5, 3)


def test_a_machine_that_slows_down_steadily_does_not_change_a_ratio():
    true = {"none": 1.0, "abs": 1.05, "synchronous": 1.4, "chandy_lamport": 1.1}
    row = [
        (name, true[name] * (1 + 0.03 * position))
        for position, name in enumerate(order(PROTOCOLS, 5))
    ]
    found = ratios(row)
    assert [len(found[name]) for name in PROTOCOLS] == [5, 5, 5]
    for name, values in found.items():
        assert values == pytest.approx([true[name]] * len(values))


def test_baselines_between_baselines_are_the_control():
    row = [("none", 1.0), ("abs", 2.0), ("none", 1.2), ("abs", 2.0), ("none", 1.0)]
    found = compare([(name, {"cost": cost}) for name, cost in row], "cost")
    assert found["none"]["all"] == pytest.approx([0.2])
    assert found["none"]["overhead"] == pytest.approx(0.2)


def test_the_interval_of_a_median_is_within_the_values_and_around_the_median():
    values = [0.01, 0.05, 0.02, 0.03, 0.9]
    low, high = median_interval(values)
    assert 0.01 <= low <= 0.03 <= high <= 0.9
    assert median_interval([0.25]) == [0.25, 0.25]
    narrow = median_interval([0.1 + 0.001 * i for i in range(100)])
    assert narrow[1] - narrow[0] < 0.06


def test_runs_without_a_cost_are_not_compared():
    row = [("none", {"cost": 1.0}), ("abs", {"cost": None}), ("none", {"cost": 1.0})]
    with pytest.raises(WrongResultError, match="cost"):
        compare(row, "cost")


def test_more_snapshots_than_asked_for_do_not_make_up_for_those_of_another_run():
    runs = [
        {"snapshots_asked": 10, "snapshots_completed": 12},
        {"snapshots_asked": 10, "snapshots_completed": 5},
    ]
    assert completed_share(runs) == 0.75


def test_medians_are_over_the_runs_that_have_a_figure_and_of_a_most_the_greatest():
    found = medians([{"a": 1.0, "log_bytes_max": 5}, {"a": 3.0, "log_bytes_max": 7}, {"a": None}])
    assert found == {"runs": 3, "a": 2.0, "log_bytes_max": 7}


# ---- plans


def test_all_runs_of_a_row_read_for_the_same_whole_intervals():
    rows = paper.Plan().rows()
    assert [row[0] for row in rows] == [[0.05, 0.1, 0.25, 0.5, 1.0], (3.0,), (10.0,)]
    assert [row[1] for row in rows] == pytest.approx([3.5, 6.5, 20.5])
    assert [row[2] for row in rows] == pytest.approx([1.5, 0.5, 0.5])


def test_the_quick_plan_takes_less_than_nine_minutes():
    plan, around = paper.Plan.quick(), 1.2  # seconds to start a job and to end it
    seconds = 0.0
    for intervals, reads, _, rounds in plan.rows():
        runs = len(order([str(i) for i in range(len(intervals) * len(plan.protocols))], rounds))
        seconds += len(plan.sizes) * runs * (reads + around)
    per_run = plan.warm + plan.seconds + around
    seconds += 3 * (1 + len(plan.protocols)) * plan.model_rounds * per_run  # the model's fit
    seconds += 2 * len(order(plan.checked, plan.model_rounds)) * per_run  # and its checks
    assert seconds < 9 * 60


# ---- runs


def measured(measure: Callable[[], dict], enough: Callable[[dict], object]) -> dict:
    """Measure, and measure once more while it is not enough.

    In half a second, for all of which the machine may stand still, few records or none may arrive
    and no snapshot may complete.
    """
    for _ in range(4):
        try:
            figures = measure()
        except WrongResultError as error:
            if "too short" not in str(error):
                raise
        else:
            if enough(figures):
                return figures
    return measure()


SMALL = paper.Plan(
    intervals=(0.2,), sizes=("1000",), rounds=3, protocols=("abs",), seconds=0.4, warm=0.1
)


def test_protocols_are_measured_against_runs_without_snapshots_by_state_size(tmp_path):
    plan = paper.Plan(**{**vars(SMALL), "parts": ("figure6",)})
    figures = measured(
        lambda: paper.measure(plan, str(tmp_path), quiet),
        lambda found: found["by_state_size"]["1000"]["details"]["0.2"]["abs"].get("snapshot_bytes"),
    )
    of = figures["by_state_size"]["1000"]
    assert of["keys"] == 1003
    assert of["abs_overhead"].keys() == of["abs_run_time_overhead"].keys() == {"0.2"}
    assert of["control"]["0.2"]["overhead"] == of["control"]["0.2"]["all"][0]
    details = of["details"]["0.2"]
    assert details["none"]["runs"] == 3
    assert details["none"]["cpu_seconds"] > 0
    waits = ("barrier_travel_ms", "aligned_ms", "channel_aligned_ms", "longest_pause_ms")
    for name in (*waits, "snapshots_completed"):
        assert details["abs"][name] >= 0
    assert {"date", "versions", "cpu", "cores"} <= figures["measured"]["figure6"].keys()
    assert list(tmp_path.iterdir()) == []


def test_a_paced_run_has_latencies(tmp_path):
    job = Job(keys=1003, rate=5_000, seconds=0.6, warm=0.1)
    figures = measured(
        lambda: paper_jobs.run_once(job, str(tmp_path), quiet), lambda found: found["p99_ms"]
    )
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


@pytest.mark.parametrize(
    "mode", [CheckpointingMode.SYNCHRONOUS, CheckpointingMode.UNALIGNED], ids=str
)
def test_every_record_leaves_the_loop_whatever_the_protocol(tmp_path, mode):
    job = Job(2, mode, 0.2, seconds=0.5, warm=0.1, graph="loop")
    figures = measured(
        lambda: paper_jobs.run_once(job, str(tmp_path), quiet),
        lambda found: found["snapshots_completed"],
    )
    assert figures["records"] > 0
    assert figures["snapshots_asked"] == 2
    assert figures["log_bytes"] is not None


def test_every_word_of_each_line_is_counted(tmp_path):
    job = Job(1, seconds=0.5, warm=0.1, graph="words", keys=101)
    figures = measured(lambda: paper_jobs.run_once(job, str(tmp_path), quiet), lambda found: True)
    assert figures["records"] > 0


def test_fixed_work_is_timed_at_each_parallelism(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_scaling, "SECONDS", 0.1)
    monkeypatch.setattr(paper_scaling, "WARM_SECONDS", 0.1)
    figures = measured(lambda: paper_scaling.measure((1,), 1, str(tmp_path), quiet), lambda _: True)
    points = figures["figure7"]["points"]
    assert points["1"]["abs"]["seconds"] > 0 < points["1"]["none"]["seconds"]
    assert figures["records_per_second"].keys() == figures["records_per_second_none"].keys()


def test_two_workers_are_compared_with_one_in_two_orders_of_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_scaling, "SECONDS", 0.1)
    monkeypatch.setattr(paper_scaling, "WARM_SECONDS", 0.1)
    figures = measured(
        lambda: paper_scaling.measure((1, 2), 1, str(tmp_path), quiet), lambda _: True
    )
    assert figures["two_workers_to_one"] > 0 < figures["two_workers_to_one_scattered"]


def test_a_run_that_ends_before_it_is_warm_has_no_figures(tmp_path):
    with pytest.raises(WrongResultError, match="too short"):
        paper_jobs.run_once(Job(1, records=100, warm=PATIENCE), str(tmp_path), quiet)


# ---- the model


def test_the_fit_returns_the_costs_that_the_samples_were_made_of():
    true = paper_model.Costs(2e-3, 3e-4, 7e-7, 1e-7)
    samples = [
        paper_model.Sample(tasks, keys, true.of(tasks, keys, 0))
        for tasks, keys in ((4, 75), (8, 75), (8, 6000))
    ]
    found = paper_model.fit(*samples, true.record)
    assert vars(found) == pytest.approx(vars(true))


def test_no_cost_is_below_zero():
    samples = [paper_model.Sample(4, 75, 2e-3), paper_model.Sample(8, 75, 1e-3)]
    found = paper_model.fit(*samples, paper_model.Sample(8, 6000, 5e-4), 1e-7)
    assert min(vars(found).values()) >= 0


def test_a_prediction_counts_snapshots_tasks_keys_and_records_in_flight():
    costs = paper_model.Costs(1e-3, 1e-4, 1e-6, 1e-7)
    base = {"cpu_seconds": 4.0, "cpu_seconds_per_record": 4e-6}  # a million words
    run = {"snapshots_completed": 9, "log_records": 1000}
    job = Job(graph="words", keys=5_000)
    # 10,000 lines change all 5,000 keys between two snapshots.
    expected = 9 * (1e-3 + 4 * 1e-4 + 5000 * 1e-6 + 1000 * 1e-7) / 4.0
    assert paper_model.predicted_overhead(costs, job, base, run, 4) == pytest.approx(expected)


def test_keys_that_change_are_at_most_all_keys_of_each_aggregate():
    job = Job(keys=1003)
    assert job.keys_changed(100) == 300
    assert job.keys_changed(1e6) == 3009
    assert Job(graph="loop", keys=1003).keys_changed(100) == 500


# ---- plots and tables


def canned() -> dict:
    """Return a result of all parts; at 0.1 s too few synchronous snapshots completed."""
    of_snapshot = {
        "snapshot_bytes": 2e6,
        "snapshot_ms": 50.0,
        "write_ms": 20.0,
        "aligned_ms": 3.0,
        "channel_aligned_ms": 1.5,
        "barrier_travel_ms": 8.0,
        "log_bytes": 4_000,
        "log_records": 300,
        "log_bytes_max": 9_000,
        "log_records_max": 700,
        "longest_pause_ms": 30.0,
        "p99_ms": 9.0,
    }
    of: dict = {"keys": 1003}
    for key in ("0.1", "1", "3"):
        row = [("none", run_of(1.0, longest_pause_ms=5.0, p99_ms=4.0))]
        for _ in range(2):
            for name, cost in (("abs", 1.1), ("synchronous", 1.5), ("chandy_lamport", 1.2)):
                short = 7 if (key, name) == ("0.1", "synchronous") else 10
                row.append((f"{name} {key}", run_of(cost, 10, short, **of_snapshot)))
                row.append(("none", run_of(1.0, longest_pause_ms=5.0, p99_ms=4.0)))
        paper._add_interval(of, key, PROTOCOLS, row)
    time = {"seconds": 2.0, "seconds_95": [1.8, 2.2], "all_seconds": [2.0]}
    points = {
        str(count): {"none": time, "abs": time, "snapshots_completed": 1} for count in (1, 2, 4)
    }
    fixed = {"records": 1000, "interval": 3.0, "points": points}
    told = {"date": "then", "cores": 2, "cpu": "one", "system": "Linux", "kernel": "6"}
    told |= {"python": "3", "versions": {"penstock": "0"}, "rounds": 2, "load_average": 1.0}
    cost = {"fixed_ms": 1.5, "task_ms": 0.25, "key_us": 0.7, "record_us": 0.1}
    check = {"predicted": 0.05, "measured": 0.06, "band": [0.04, 0.07]}
    return {
        "by_state_size": {"1000": of, "10000": of, "70000": of},
        "paced": {"1000": {**of, "rate": 12345}},
        "cyclic": {**of, "hops": 5},
        "model": {
            "costs": dict.fromkeys(PROTOCOLS, cost),
            "checks": {graph: {"abs": {"0.1": check}} for graph in ("words", "loop")},
        },
        "figure7": fixed,
        "spark": {**fixed, "master": "local-cluster", "version": "4"},
        "cores": 2,
        "measured": dict.fromkeys(paper.PARTS, told),
    }


def run_of(seconds: float, asked: int = 0, completed: int = 0, **more: float | None) -> dict:
    of_snapshots = {"snapshots_asked": asked, "snapshots_completed": completed}
    figures = {"seconds_per_record": seconds, "cpu_seconds_per_record": 2 * seconds}
    return {**figures, **(of_snapshots if asked else {}), **more}


def canned_latency() -> dict:
    return {
        "runs": [
            {
                "load": load,
                "shuffles": shuffles,
                "snapshots": snapshots,
                "p50_ms": 1.0 + load,
                "p99_ms": 3.0 + load,
                "steady_p99_ms": 2.0 + load,
                "slow_percent": 5.0,
                "max_ms": 9.0 + load,
            }
            for load in (0.1, 0.5, 0.9)
            for shuffles in (1, 3)
            for snapshots in (True, False)
        ]
    }


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all plots."""
    folder = tmp_path_factory.mktemp("drawn")
    written = plots.draw(canned(), canned_latency(), folder)
    assert sorted(written) == sorted(folder.iterdir())
    return folder


def texts(path: Path) -> set[str]:
    """All text of a drawing, lines joined."""
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    found = [" ".join("".join(e.itertext()).split()) for e in root.iter() if e.tag.endswith("text")]
    return set(found)


def test_plots_are_drawing_and_picture_with_labelled_axes(drawn):
    assert {path.name for path in drawn.iterdir()} == {
        f"{name}.{kind}"
        for name in ("figure6", "paced", "figure7", "cyclic", "model", "latency")
        for kind in ("svg", "png")
    }
    for name in ("figure6", "cyclic"):
        labels = {"snapshot interval (s)", "added processor time (%)", "0.1", "1", "3"}
        assert labels | {"ABS", "unaligned", "synchronous", "control"} <= texts(
            drawn / f"{name}.svg"
        )
    assert "added p99 latency (ms)" in texts(drawn / "paced.svg")
    labels = texts(drawn / "figure7.svg")
    assert {"parallelism (worker processes)", "run time of the same work (s)", "4"} <= labels
    assert {"ABS on Spark", "no snapshots", "cores of the machine"} <= labels
    assert "records in the logs of a snapshot (median)" in texts(drawn / "cyclic.svg")
    assert {"ABS, word count", "ABS, loop", "as predicted"} <= texts(drawn / "model.svg")
    assert "load (% of the highest sustainable rate)" in texts(drawn / "latency.svg")
    for path in drawn.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_marker_is_hollow_where_too_few_snapshots_completed():
    axes = plots.plot_figure6(canned()["by_state_size"]).axes[0]
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_xdata()) for line in hollow] == [[0.1]]


def test_the_same_result_gives_the_same_drawing(drawn, tmp_path):
    for path in plots.draw(None, canned_latency(), tmp_path):
        assert path.read_bytes() == (drawn / path.name).read_bytes()


def test_results_are_kept_with_tables_and_parts_measured_before_stay(tmp_path):
    told = canned()["measured"]["figure7"]
    for part, date in (("figure7", "then"), ("spark", "later")):
        measured = {part: {**told, "date": date}}
        written = paper_report.keep({part: canned()[part], "measured": measured}, tmp_path)
        assert {path.name for path in written} == {
            *("paper.json", "paper.md", "figure7.svg", "figure7.png")
        }
    kept = json.loads((tmp_path / "paper.json").read_text())
    assert [kept["measured"][part]["date"] for part in ("figure7", "spark")] == ["then", "later"]
    page = (tmp_path / "paper.md").read_text()
    assert "| figure7 | then |" in page and "| spark | later |" in page
    assert "| 2 | 2.00 (1.80 … 2.20) | 2.00 (1.80 … 2.20) | 500 | 1 |" in page


def test_tables_have_a_line_for_each_interval():
    page = paper_report.tables(canned())
    row = "| 0.1 s | 10.0 % (10.0 … 10.0) | 50.0 % (50.0 … 50.0) | 20.0 % (20.0 … 20.0) | 0.0 %"
    assert row in page
    assert "| 0.1 s | 1.0 | 0.7 | 1.0 |" in page
    assert "| 1 s | ABS | 300 | 700 | 4.0 | 9.0 |" in page
    assert "| 1 s | 5.0 | 5.0 | 5.0 | 4.0 |" in page
    assert "| ABS | 1.50 | 0.25 | 0.70 | 0.10 |" in page
    assert "| words | ABS | 0.1 s | 5.0 % | 6.0 % (4.0 … 7.0) |" in page


def test_plots_are_drawn_again_from_what_is_kept(tmp_path):
    done = CliRunner().invoke(main, ["plot", "--results", str(tmp_path)])
    assert done.exit_code == 1
    assert "no results in" in done.output and "bench paper --results" in done.output
    (tmp_path / "latency_load.json").write_text(json.dumps(canned_latency()))
    done = CliRunner().invoke(main, ["plot", "--results", str(tmp_path)])
    assert done.exit_code == 0
    written = [str(tmp_path / f"latency.{kind}") for kind in ("svg", "png", "md")]
    assert done.output.split() == written
    page = (tmp_path / "latency.md").read_text()
    assert "| 90 % | 3 | no | 1.90 | 3.90 | 2.90 | 9.90 | 5 % |" in page


def test_a_run_without_a_steady_moment_is_shown_without_that_figure(tmp_path):
    results = canned_latency()
    del results["runs"][0]["steady_p99_ms"]
    assert plots.draw(None, results, tmp_path)
    assert "| 10 % | 1 | yes | 1.10 | 3.10 | none | 9.10 | 5 % |" in paper_report.latency_table(
        results
    )


def test_the_page_of_the_evaluation_shows_the_plots_that_are_drawn(drawn):
    page = (ROOT / "docs" / "inside" / "evaluation.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(\.\./\.\./bench/results/([\w.]+)\)", page)
    # The last one is drawn by `bench/checkmate`.
    assert set(shown) == {path.name for path in drawn.glob("*.svg")} | {"checkmate.svg"}
