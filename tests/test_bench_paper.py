"""The paper's evaluation: statistics, plots, tables, and each kind of run at its smallest.

No time is asserted here. Figures are for `python -m bench paper`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench import paper, paper_jobs, paper_report, plots
from bench.__main__ import main
from bench.harness import WrongResultError
from bench.paper_statistics import evaluate, median_interval, order, overheads
from penstock import CheckpointingMode
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).parent.parent
PROTOCOLS = ("abs", "synchronous", "chandy_lamport")


def quiet(_: str) -> None:
    """Progress is for people."""


# ---- order and estimator


def test_a_baseline_stands_before_every_two_protocols_and_at_the_end():
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


def test_a_machine_that_slows_down_steadily_does_not_change_an_overhead():
    true = {"none": 1.0, "abs": 1.05, "synchronous": 1.4, "chandy_lamport": 1.1}
    row = [
        (name, true[name] * (1 + 0.03 * position))
        for position, name in enumerate(order(PROTOCOLS, 5))
    ]
    found = overheads(row)
    assert [len(found[name]) for name in PROTOCOLS] == [5, 5, 5]
    for name, values in found.items():
        assert values == pytest.approx([true[name] - 1] * len(values))


def test_baselines_between_baselines_are_the_control():
    found = overheads([("none", 1.0), ("abs", 2.0), ("none", 1.2), ("abs", 2.0), ("none", 1.0)])
    assert found["none"] == pytest.approx([0.2])


def test_the_interval_of_a_median_is_within_the_values_and_around_the_median():
    values = [0.01, 0.05, 0.02, 0.03, 0.9]
    low, high = median_interval(values)
    assert 0.01 <= low <= 0.03 <= high <= 0.9
    assert median_interval([0.25]) == [0.25, 0.25]
    narrow = median_interval([0.1 + 0.001 * i for i in range(100)])
    assert narrow[1] - narrow[0] < 0.06


# ---- void figures


def run_of(seconds: float, asked: int = 0, completed: int = 0, **more: float | None) -> dict:
    of_snapshots = {"snapshots_asked": asked, "snapshots_completed": completed}
    figures = {"seconds_per_record": seconds, "cpu_seconds_per_record": 2 * seconds}
    return {**figures, **(of_snapshots if asked else {}), **more}


def row_of(completed: int) -> list[tuple[str, dict]]:
    return [
        ("none", run_of(1.0)),
        ("abs", run_of(1.1, 10, completed, log_bytes_max=5)),
        ("none", run_of(1.0)),
        ("abs", run_of(1.1, 10, 10, log_bytes_max=7)),
        ("none", run_of(1.0)),
    ]


def test_a_figure_is_there_if_nine_of_ten_snapshots_completed_over_all_runs():
    result: dict = {}
    evaluate(result, "0.1", row_of(8))
    assert result["snapshots_completed_share"] == {"0.1": 0.9}
    assert result["abs_overhead"] == {"0.1": pytest.approx(0.1)}
    assert result["abs_overhead_95"] == {"0.1": pytest.approx([0.1, 0.1])}
    assert result["abs_cpu_overhead"] == {"0.1": pytest.approx(0.1)}
    assert result["none_overhead"] == {"0.1": 0}


def test_a_figure_is_void_if_fewer_completed():
    result: dict = {}
    evaluate(result, "0.05", row_of(7))
    assert result["snapshots_completed_share"] == {"0.05": 0.85}
    for name in ("abs_overhead", "abs_overhead_95", "abs_cpu_overhead", "abs_cpu_overhead_95"):
        assert result[name] == {"0.05": None}
    assert result["details"]["0.05"]["abs"]["runs"] == 2


def test_more_snapshots_than_asked_for_do_not_make_up_for_those_of_another_run():
    result: dict = {}
    evaluate(result, "1", [*row_of(12)[:3], ("abs", run_of(1.1, 10, 5)), ("none", run_of(1.0))])
    assert result["snapshots_completed_share"] == {"1": 0.75}


def test_details_are_medians_and_of_a_most_the_greatest():
    result: dict = {}
    evaluate(result, "1", row_of(10))
    assert result["details"]["1"]["abs"]["log_bytes_max"] == 7
    assert result["details"]["1"]["none"]["seconds_per_record"] == 1.0


def test_runs_without_processor_time_are_not_compared():
    row = [("none", run_of(1.0)), ("abs", run_of(1.0, 1, 1, cpu_seconds_per_record=None))]
    with pytest.raises(WrongResultError, match="cpu_seconds_per_record"):
        evaluate({}, "1", [*row, ("none", run_of(1.0))])


def test_a_run_is_as_long_as_whole_intervals_and_its_warm_up():
    assert paper.Plan().warm_of(1.0) == 1.5 and paper.Plan().warm_of(3.0) == 0.5
    plan = paper.Plan()
    seconds = {interval: plan.seconds_of(interval) for interval in paper.INTERVALS}
    assert seconds == pytest.approx(
        {0.05: 3.55, 0.1: 3.6, 0.25: 3.75, 0.5: 4.0, 1.0: 4.5, 3.0: 6.5, 10.0: 20.5}
    )
    quick = paper.Plan(seconds=paper.QUICK_SECONDS)
    assert [quick.seconds_of(interval) for interval in (0.1, 1.0, 3.0)] == [2.6, 3.5, 6.5]


# ---- runs


def measured(measure: Callable[[], dict], enough: Callable[[dict], object]) -> dict:
    """What is measured, once more while it is not enough.

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


def test_protocols_are_measured_against_runs_without_snapshots(tmp_path):
    plan = paper.Plan([0.2], 1, (1,), ("figure6",), ("abs",), 0.4, 2, 0.1)
    figures = measured(
        lambda: paper.measure(plan, str(tmp_path), quiet),
        lambda found: found["snapshot_bytes"]["0.2"] and found["keys_changed_per_second"],
    )
    assert figures["abs_overhead"].keys() == figures["abs_cpu_overhead"].keys() == {"0.2"}
    assert figures["keys_changed_per_second"] > 0
    assert figures["snapshot_bytes"]["0.2"] > 0
    details = figures["details"]["0.2"]
    assert details["none"]["runs"] == 2
    assert details["none"]["cpu_seconds"] > 0
    waits = ("barrier_travel_ms", "aligned_ms", "channel_aligned_ms", "longest_pause_ms")
    for name in (*waits, "snapshots_completed"):
        assert details["abs"][name] >= 0
    assert {"date", "versions", "cpu", "cores"} <= figures["measured"]["figure6"].keys()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "mode", [CheckpointingMode.SYNCHRONOUS, CheckpointingMode.CHANDY_LAMPORT], ids=str
)
def test_every_record_leaves_the_loop_whatever_the_protocol(tmp_path, mode):
    job = paper_jobs.Job(2, mode, 0.2, seconds=0.5, warm=0.1, cyclic=True)
    figures = measured(
        lambda: paper_jobs.run_once(job, str(tmp_path), quiet),
        lambda found: found["snapshots_completed"],
    )
    assert figures["records"] > 0
    assert figures["snapshots_asked"] == 2
    assert figures["log_bytes"] is not None


def test_fixed_work_is_timed_at_each_parallelism(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "FIGURE7_SECONDS", 0.1)
    plan = paper.Plan((), 1, (1,), ("figure7",), warm=0.1, figure7_rounds=1)
    figures = measured(lambda: paper.measure(plan, str(tmp_path), quiet), lambda found: True)
    points = figures["figure7"]["points"]
    assert points["1"]["abs"]["seconds"] > 0 < points["1"]["none"]["seconds"]
    assert figures["records_per_second"].keys() == figures["records_per_second_none"].keys()


def test_a_run_that_is_over_before_it_is_warm_has_no_figures(tmp_path):
    with pytest.raises(WrongResultError, match="too short"):
        paper_jobs.run_once(paper_jobs.Job(1, records=100, warm=PATIENCE), str(tmp_path), quiet)


# ---- plots and tables


def canned() -> dict:
    """A result of all parts; synchronous snapshots are void at 0.1 s."""
    result: dict = {"keys": 6, "keys_changed_per_second": 5, "snapshot_bytes": {}, "cores": 2}
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
    }
    for key in ("0.1", "1", "3"):
        short = 7 if key == "0.1" else 10
        row = [("none", run_of(1.0, longest_pause_ms=5.0))]
        for _ in range(2):
            row += [
                ("abs", run_of(1.1, 10, 10, **of_snapshot)),
                ("synchronous", run_of(1.5, 10, short, **of_snapshot)),
                ("none", run_of(1.0, longest_pause_ms=5.0)),
                ("chandy_lamport", run_of(1.2, 10, 10, **of_snapshot)),
                ("none", run_of(1.0, longest_pause_ms=5.0)),
            ]
        evaluate(result, key, row)
    loop = {**json.loads(json.dumps(result)), "hops": 5}
    time = {"seconds": 2.0, "seconds_95": [1.8, 2.2], "all_seconds": [2.0]}
    points = {
        str(count): {"none": time, "abs": time, "snapshots_completed": 1} for count in (1, 2, 4)
    }
    fixed = {"records": 1000, "interval": 3.0, "points": points}
    told = {"date": "then", "cores": 2, "cpu": "one", "system": "Linux", "kernel": "6"}
    told |= {"python": "3", "versions": {"penstock": "0"}, "rounds": 2, "load_average": 1.0}
    result |= {"figure7": fixed, "cyclic": loop}
    result["spark"] = {**fixed, "master": "local-cluster", "version": "4"}
    return {**result, "measured": dict.fromkeys(paper.PARTS, told)}


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


def test_plots_are_drawing_and_picture_with_the_axes_of_the_paper(drawn):
    assert {path.name for path in drawn.iterdir()} == {
        f"{name}.{kind}"
        for name in ("figure6", "figure7", "waits", "cyclic", "cyclic_logs", "latency")
        for kind in ("svg", "png")
    }
    for name in ("figure6", "cyclic"):
        labels = {"snapshot interval (s)", "run time relative to no snapshots", "0.1", "1", "3"}
        assert labels | {"ABS", "Chandy-Lamport", "synchronous"} <= texts(drawn / f"{name}.svg")
    labels = texts(drawn / "figure7.svg")
    assert {"parallelism (worker processes)", "run time of the same work (s)", "4"} <= labels
    assert {"ABS on Spark", "no snapshots", "cores of the machine"} <= labels
    assert "records in the logs of a snapshot (median)" in texts(drawn / "cyclic_logs.svg")
    assert "load (% of the highest sustainable rate)" in texts(drawn / "latency.svg")
    for path in drawn.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_void_figure_is_not_drawn():
    for name, points in (("ABS", [0.1, 1, 3]), ("synchronous", [1, 3])):
        axes = plots.plot_figure6(canned()).axes[0]
        (line,) = (line for line in axes.lines if line.get_label() == name)
        assert list(line.get_xdata()) == points


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


def test_tables_have_a_line_for_each_interval_and_say_what_is_void():
    page = paper_report.tables(canned())
    assert "| 0.1 s | 10.0 % (10.0 … 10.0) | void | 20.0 % (20.0 … 20.0) | 0.0 %" in page
    assert "| 0.1 s | 1.0 | 0.7 | 1.0 |" in page
    assert "| 1 s | ABS | 300 | 700 | 4.0 | 9.0 |" in page


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
    page = (ROOT / "docs" / "evaluation.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(\.\./bench/results/([\w.]+)\)", page)
    assert set(shown) == {path.name for path in drawn.glob("*.svg")}
