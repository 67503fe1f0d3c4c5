"""CheckMate's queries: inputs, results, a run with a kill, and what is kept of the figures.

No time is asserted here. Figures are for `python -m bench checkmate`.
"""

import json
from array import array
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.checkmate import evaluation, inputs, queries, report, runs
from bench.checkmate.evaluation import CheckmatePlan
from bench.checkmate.inputs import INPUTS, NO_ROOT, SplitSlices, read_records
from bench.checkmate.queries import QUERIES
from bench.checkmate.runs import Arrival, RunPlan, run_query
from bench.common.harness import WrongResultError
from bench.nexmark.model import Bid
from penstock import CheckpointingMode, StreamExecutionEnvironment

EXACTLY_ONCE = CheckpointingMode.EXACTLY_ONCE


def quiet(_: str) -> None:
    """Progress is for people."""


# ---- inputs


def number_of(record) -> int:
    return record.date_time if hasattr(record, "date_time") else record[3]


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_the_place_of_a_record_follows_from_its_number(name, hot):
    source = INPUTS[name]
    for split in range(2):
        slices = SplitSlices(source, hot, split, 2)
        records = [record for turn in range(2) for record in slices(turn * source.block, 10**6)]
        assert len(records) == 2 * source.block
        assert [source.index_in_split(number_of(r), 2) for r in records] == [*range(len(records))]


@pytest.mark.parametrize("name", INPUTS)
def test_the_records_that_were_read_are_those_of_all_slices(name):
    source = INPUTS[name]
    positions = [source.block + 7, 5]
    first = SplitSlices(source, True, 0, 2)
    expected = [*first(0, source.block), *first(source.block, 7)]
    expected += SplitSlices(source, True, 1, 2)(0, 5)
    assert list(read_records(source, True, positions)) == expected


def keys_of(name: str, hot: bool) -> Counter:
    records = list(read_records(INPUTS[name], hot, [INPUTS[name].block * 4]))
    if name == "bids":
        return Counter(bid.bidder for bid in records)
    if name == "offers":
        return Counter(offer.seller for offer in records if hasattr(offer, "seller"))
    return Counter(link[0] for link in records)


@pytest.mark.parametrize("name", INPUTS)
def test_a_hot_key_has_a_fifth_of_the_records(name):
    ((_, most),) = keys_of(name, hot=True).most_common(1)
    ((_, without),) = keys_of(name, hot=False).most_common(1)
    total = keys_of(name, hot=True).total()
    assert 0.18 < most / total < 0.3
    assert without / total < 0.1


def test_the_hot_node_is_the_target_of_a_fifth_of_the_links_too():
    links = list(read_records(INPUTS["links"], True, [4 * inputs.LINK_BLOCK]))
    assert 0.18 < sum(link[2] == inputs.HOT_NODE for link in links) / len(links) < 0.25
    assert sum(link[1] != NO_ROOT for link in links) == inputs.ROOTS


# ---- results


def results_of(name: str, hot: bool, positions: list[int]) -> Counter:
    query = QUERIES[name]
    records = list(read_records(INPUTS[query.input], hot, positions))
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
    env.set_parallelism(2)
    stream = env.from_collection(records)
    if query.timed:
        stream = stream.assign_timestamps_and_watermarks(query.watermarks())
    with query.build(stream).execute_and_collect() as results:
        return Counter(query.text(row) for row in results)


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_the_expected_results(monkeypatch, name, hot):
    # Several windows, in few events.
    for window in ("BID_WINDOW", "OFFER_WINDOW"):
        monkeypatch.setattr(inputs, window, 500)
        monkeypatch.setattr(queries, window, 500)
    query = QUERIES[name]
    positions = [INPUTS[query.input].block + 9]
    results = results_of(name, hot, positions)
    assert results.total() > 10
    assert results == query.expected(read_records(INPUTS[query.input], hot, positions))


def test_the_number_of_a_result_is_that_of_a_record_that_it_follows_from():
    bid = Bid(1_004, 1_002, 700, "", "", 57, "")
    assert QUERIES["q1"].number((bid.auction, bid.bidder, 1, bid.date_time, "")) == 57
    # Person 1,002 is event 100. Auctions 1,004 and 1,009 are the events 52 and 151.
    assert QUERIES["q3"].number(("ann", 1_002, 1_004)) == 100
    assert QUERIES["q8"].number(("ann", 1_002, 1_009)) == 151
    assert QUERIES["q12"].number((1_002, 3, 57, 0)) == 57
    assert QUERIES["cyclic"].number((4, 0, -1, 57)) == 57


def test_lost_and_doubled_results_are_counted(tmp_path):
    (tmp_path / "out").mkdir()
    query, positions = QUERIES["cyclic"], [300, 250]
    right = list(query.expected(read_records(INPUTS["links"], False, positions)))
    (tmp_path / "out" / "part-1").write_text("\n".join(right[3:]) + "\n")
    (tmp_path / "out" / "part-2").write_text(f"{right[4]}\n{right[5]}\n")
    assert runs.differences(query, False, positions, tmp_path) == (3, 2)


# ---- runs


@pytest.mark.parametrize(
    ("query", "mode"),
    [("cyclic", EXACTLY_ONCE), ("q12", CheckpointingMode.UNALIGNED)],
)
def test_no_result_is_lost_or_doubled_when_a_worker_is_killed(tmp_path, query, mode):
    plan = RunPlan(query, True, mode, 0.1, rate=500, warm=0.3, steady=0.5, kill=True)
    figures = run_query(plan, str(tmp_path), quiet)
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    assert figures["records"] > 0
    assert figures["seconds_without_output"] > 0
    assert 0 < figures["seconds_until_detected"] < figures["seconds_until_running"]
    assert figures["seconds_again"] == figures["records_again"] / 500
    assert list(tmp_path.iterdir()) == []


def test_a_run_at_full_speed_has_a_rate_and_right_results(tmp_path):
    plan = RunPlan("q3", False, None, warm=0.1, steady=0.5)
    figures = run_query(plan, str(tmp_path), quiet)
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    assert figures["records_per_second"] > 0


@pytest.mark.parametrize(
    ("mode", "found", "message"),
    [
        (EXACTLY_ONCE, (0, 1), "lost 0, doubled 1 results"),
        (CheckpointingMode.AT_LEAST_ONCE, (2, 0), "lost 2, doubled 0 results"),
    ],
)
def test_a_wrong_result_is_an_error(mode, found, message):
    with pytest.raises(WrongResultError, match=message):
        runs.require_right_results(RunPlan("q1", mode=mode), *found)


def test_at_least_once_may_double_results():
    runs.require_right_results(RunPlan("q1", mode=CheckpointingMode.AT_LEAST_ONCE), 0, 7)


def test_what_is_read_again_after_a_failure_is_noted(tmp_path):
    before = runs._Readings(tmp_path, 0)
    before.opened(0)
    before.read(40)
    after = runs._Readings(tmp_path, 0)
    after.opened(25)
    assert (tmp_path / "again-0").read_text() == "15\n"
    after.read(30)
    (tmp_path / "notes").symlink_to(tmp_path)
    assert runs._position(tmp_path, 0) == 30
    assert runs._position(tmp_path, 1) == 0


def test_the_notes_of_a_process_that_was_killed_may_end_anywhere(tmp_path):
    (tmp_path / "notes").mkdir()
    notes = array("d", (2.0, 1, 0.25, 5.0, 0))
    (tmp_path / "notes" / "arrivals-1").write_bytes(notes.tobytes() + b"\0\0\0")
    (tmp_path / "notes" / "arrivals-2").write_bytes(array("d", (3.0, 2, 0.5, 0.75)).tobytes())
    expected = [Arrival(2.0, [0.25]), Arrival(3.0, [0.5, 0.75]), Arrival(5.0, [])]
    assert runs._noted_arrivals(tmp_path) == expected


def test_a_recovery_is_over_when_the_usual_latency_is_back():
    arrivals = [Arrival(9.95, [0.01]), Arrival(10.5, [0.6]), Arrival(10.75, [0.3, 0.04, 0.03])]
    assert runs._of_recovery(arrivals, 10.0, 0.05) == {
        "seconds_without_output": pytest.approx(0.55),
        "seconds_until_caught_up": pytest.approx(0.8),
    }
    assert runs._of_recovery(arrivals[:2], 10.0, 0.05)["seconds_until_caught_up"] is None
    with pytest.raises(WrongResultError):
        runs._of_recovery(arrivals[:1], 10.0, 0.05)


# ---- the evaluation and its report


def canned_run(plan: RunPlan, folder: str | None, say) -> dict:
    """Return the figures of a run without a job."""
    cost = 1.0 if plan.mode is None else 1.25
    figures = {"snapshot_ms": 30.0, "log_records": 5.0, "lost": 0, "doubled": 0}
    if not plan.kill:
        rates = {"records_per_second": 10_000 / cost, "cpu_seconds_per_record": cost / 10_000}
        return {**figures, **rates}
    more = {"p50_ms": 1.5, "p99_ms": 20.0, "seconds_until_detected": 0.02, "records_again": 120}
    again = {"seconds_again": 0.04, "seconds_without_output": 0.5}
    return {**figures, **more, **again, "seconds_until_caught_up": None}


@pytest.fixture
def measured(monkeypatch) -> dict:
    monkeypatch.setattr(evaluation, "run_query", canned_run)
    plan = CheckmatePlan(queries=("q1", "cyclic"), rounds=2)
    parts = []
    result = evaluation.measure(plan, None, quiet, parts.append)
    assert [list(part["cases"]) for part in parts] == [[name] for name in result["cases"]]
    return result


def test_a_query_without_keys_has_no_hot_one(measured):
    assert list(measured["cases"]) == ["q1 uniform", "cyclic uniform", "cyclic hot"]


def test_all_protocols_have_the_same_rate_which_is_a_share_of_the_lowest_throughput(measured):
    case = measured["cases"]["cyclic hot"]
    assert case["throughput"]["none"] == 10_000
    assert case["added_processor_time"]["abs"]["overhead"] == 0.25
    assert case["rate"] == 2_400
    assert {len(found["all"]) for found in case["recovery"].values()} == {2}


def test_tables_have_a_line_for_each_protocol(measured):
    page = report.tables(measured)
    assert "| cyclic hot | 10,000 | 8,000 | 8,000 | 8,000 | 8,000 |" in page
    assert "| cyclic hot | 0 % (0 to 0) | 25 % (25 to 25) |" in page
    assert "## cyclic hot: a worker is killed at 2,400 records/s" in page
    assert "| ABS | 1.5 | 20 | 30 | 5 | 0.02 | 0.50 |  | 120 | 0.04 | 0 | 0 |" in page


def test_results_are_kept_with_a_plot_and_other_cases_stay(measured, tmp_path):
    for name in measured["cases"]:
        part = {of: {name: measured[of][name]} for of in ("cases", "measured")}
        written = report.keep(part, tmp_path)
    assert {path.name for path in written} == {
        f"checkmate.{kind}" for kind in ("json", "md", "svg", "png")
    }
    kept = json.loads((tmp_path / "checkmate.json").read_text())
    assert kept["cases"] == measured["cases"]
    root = ElementTree.parse(tmp_path / "checkmate.svg").getroot()
    texts = {"".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")}
    assert {"cyclic hot", "ABS", "at least once", "added processor time at full speed (%)"} <= texts


def test_the_plot_is_drawn_again_from_what_is_kept(measured, tmp_path):
    report.keep(measured, tmp_path)
    drawing = (tmp_path / "checkmate.svg").read_bytes()
    (tmp_path / "checkmate.svg").unlink()
    done = CliRunner().invoke(main, ["plot", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "checkmate.svg").read_bytes() == drawing


def test_the_command_measures_the_chosen_cases_and_keeps_them(monkeypatch, tmp_path):
    monkeypatch.setattr(evaluation, "run_query", canned_run)
    arguments = ["checkmate", "--query", "q3", "--keys", "hot", "--rounds", "1", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["cases"]) == ["q3 hot"]
    assert (tmp_path / "checkmate.md").exists()


def test_the_kept_results_lost_and_doubled_nothing():
    path = Path(__file__).parents[2] / "bench" / "results" / "checkmate.json"
    for name, case in json.loads(path.read_text())["cases"].items():
        for protocol, found in case["recovery"].items():
            for run in found["all"]:
                assert run["lost"] == 0, (name, protocol)
                assert run["doubled"] == 0 or protocol == "at_least_once", (name, protocol)
