"""Nexmark: each query gives what SQL gives, and the generator makes the published events."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.nexmark import measure as nexmark
from bench.nexmark import report
from bench.nexmark.generator import BLOCK, Generator, NexmarkConfig
from bench.nexmark.model import Auction, Bid, Person
from bench.nexmark.oracle import Oracle, all_events, last_of_each_key
from bench.nexmark.queries import QUERIES
from bench.nexmark.source import NexmarkSource
from penstock.dataflow.program import RunOptions, run_options
from penstock.dataflow.source import ReaderContext, Split

# 4,000 events in 50 seconds: five windows of 10 s, and the hot auctions change twice.
CONFIG = NexmarkConfig(events=4_000, rate=80)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(CONFIG)


@pytest.fixture(scope="module")
def events():
    return all_events(NexmarkConfig(events=100_000))


# The queries


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_sql_gives(oracle, tmp_path, name):
    results = nexmark.collect(QUERIES[name], CONFIG, tmp_path, 100, in_process=True)
    assert len(results) > 0
    assert oracle.difference(QUERIES[name], results) is None


@pytest.mark.parametrize("name", ["q0", "q5", "q9", "q12", "q18", "q19"])
def test_the_oracle_sees_a_row_that_is_missing_or_wrong(oracle, tmp_path, name):
    query = QUERIES[name]
    results = nexmark.collect(query, CONFIG, tmp_path, 100, in_process=True)
    rows = last_of_each_key(query.key, map(tuple, results))
    assert oracle.difference(query, rows) is None
    assert "missing" in oracle.difference(query, rows[1:])
    for place, value in enumerate(rows[0]):
        if name == "q12" and place > 1:
            continue  # the ends of the windows depend on the clock
        spoilt = (*rows[0][:place], value * 2 or 1, *rows[0][place + 1 :])
        assert oracle.difference(query, [spoilt, *rows[1:]]) is not None, (place, value)


def test_the_oracle_sees_a_bid_that_takes_two_places_of_a_rank(oracle, tmp_path):
    query = QUERIES["q19"]
    results = nexmark.collect(query, CONFIG, tmp_path, 100, in_process=True)
    rows = last_of_each_key(query.key, map(tuple, results))
    second = next(row for row in rows if row[1] == 2)
    first = rows.index(next(row for row in rows if row[:2] == (second[0], 1)))
    rows[first] = (second[0], 1, *second[2:])
    assert "come twice" in oracle.difference(query, rows)


# The generator


def test_an_event_depends_on_the_seed_and_its_number_alone():
    config = NexmarkConfig(events=4 * BLOCK)
    forth = [Generator(config).block(number) for number in range(4)]
    generator = Generator(config)
    back = [generator.block(number) for number in reversed(range(4))]
    assert forth == back[::-1]
    assert Generator(replace(config, seed=2)).block(0)[0] != forth[0][0]
    assert Generator(replace(config, events=BLOCK + 3)).block(1)[0] == forth[1][0][:3]


def test_the_columns_of_a_block_are_its_bids():
    config = NexmarkConfig(events=BLOCK + 60)
    for number, count in ((0, 2_300), (1, 52), (2, 0)):
        bids = [event for event in Generator(config).block(number)[0] if event.kind == 2]
        columns = Generator(config).bid_columns(number)
        assert list(columns.schema.names) == list(Bid._fields)
        assert [Bid(**row) for row in columns.to_pylist()] == bids
        assert columns.num_rows == count


def test_a_reader_of_columns_goes_on_at_any_position():
    config = NexmarkConfig(events=2 * BLOCK + 700)
    source = NexmarkSource(config, columns=True)
    found, position, finished = [], None, False
    while not finished:
        reader = source.create_reader(ReaderContext("source", 0, 1))
        reader.open(Split("0", [0, 1]), position)
        read = reader.read(999)
        found += read.records.to_pylist() if len(read.records) else []
        position, finished = read.position, read.finished
    assert [Bid(**row) for row in found] == [e for e in all_events(config) if e.kind == 2]


def test_a_reader_goes_on_at_any_position():
    config = NexmarkConfig(events=2 * BLOCK + 700)
    expected = all_events(config)
    found = []
    for subtask in range(2):
        context = ReaderContext("source", subtask, 2)
        split = Split(str(subtask), [subtask, 2])
        reader, position, finished = None, None, False
        while not finished:
            reader = NexmarkSource(config).create_reader(context)  # a new one, as after a failure
            reader.open(split, position)
            read = reader.read(999)
            assert read.timestamps == [event.date_time for event in read.records]
            found += read.records
            position, finished = read.position, read.finished
    assert Counter(found) == Counter(expected)


def test_a_reader_without_a_block_is_finished_at_once():
    reader = NexmarkSource(NexmarkConfig(events=10)).create_reader(ReaderContext("source", 1, 2))
    reader.open(Split("1", [1, 2]), None)
    read = reader.read(100)
    assert (read.records, read.finished) == ([], True)


def test_people_auctions_and_bids_are_1_to_3_to_46(events):
    kinds = Counter(type(event) for event in events)
    assert kinds == {Person: 2_000, Auction: 6_000, Bid: 92_000}
    assert [event.kind for event in events[:50]] == [0, 1, 1, 1] + [2] * 46
    people = [event.id for event in events if event.kind == 0]
    auctions = [event.id for event in events if event.kind == 1]
    assert people == list(range(1_000, 3_000))
    assert auctions == list(range(1_000, 7_000))


def test_events_have_the_published_sizes(events):
    def size(event):
        return sum(len(field) if isinstance(field, str) else 8 for field in event)

    sizes = {Person: [], Auction: [], Bid: []}
    for event in events:
        # The channel and the URL of a bid do not count, as in the published generator.
        known = event._replace(channel="", url="") if type(event) is Bid else event
        sizes[type(event)].append(size(known))
    for kind, average in ((Person, 200), (Auction, 500), (Bid, 100)):
        assert sum(sizes[kind]) / len(sizes[kind]) == pytest.approx(average, rel=0.05)


def test_half_of_the_bids_are_on_hot_auctions_and_three_quarters_by_hot_people(events):
    bids = [event for event in events if event.kind == 2]
    auctions = [event for event in events if event.kind == 1]
    # The others are on one of about 110 auctions, and by one of about 1,000 people.
    assert _share(bid.auction % 100 == 0 for bid in bids) == pytest.approx(0.5, abs=0.02)
    assert _share(bid.bidder % 100 == 1 for bid in bids) == pytest.approx(0.75, abs=0.02)
    assert _share(one.seller % 100 == 0 for one in auctions) == pytest.approx(0.75, abs=0.02)
    hot = ("Google", "Facebook", "Baidu", "Apple")
    assert _share(bid.channel in hot for bid in bids) == pytest.approx(0.5, abs=0.02)
    others = [bid for bid in bids if bid.channel not in hot]
    assert _share("channel_id=" in bid.url for bid in others) == pytest.approx(0.9, abs=0.02)


def test_the_logarithms_of_prices_are_distributed_evenly(events):
    prices = sorted(event.price for event in events if event.kind == 2)
    assert prices[0] >= 100
    assert prices[-1] <= 100_000_000
    for share, price in ((0.25, 10**3.5), (0.5, 10**5), (0.75, 10**6.5)):
        assert prices[round(share * len(prices))] == pytest.approx(price, rel=0.1)


def test_auctions_last_until_a_hundred_others_have_begun(events):
    auctions = [event for event in events if event.kind == 1]
    lasts = [auction.expires - auction.date_time for auction in auctions]
    assert min(lasts) >= 1
    assert sum(lasts) / len(lasts) == pytest.approx(166.6, rel=0.05)  # 1,666 events of 0.1 ms
    assert all(auction.reserve > auction.initial_bid for auction in auctions)
    assert {auction.category for auction in auctions} == {10, 11, 12, 13, 14}
    times = [event.date_time for event in events]
    assert times == sorted(times)
    assert times[-1] - times[0] == 9_999


def _share(of):
    flags = list(of)
    return sum(flags) / len(flags)


# The command


def test_a_measured_query_has_its_figures(tmp_path):
    lines = []
    figures = nexmark.measure(
        ["q2"], 5_000, 2_500, 100, str(tmp_path), lambda _: None, lines.append
    )
    query = figures["queries"]["q2"]
    assert query["correct"] is True
    assert query["events"] == 5_000
    assert query["events_per_second_per_core"] > 0
    assert query["results"] > 0
    assert {"state_bytes", "snapshot_ms_p99", "cores", "peak_rss_mb"} <= query.keys()
    assert figures["generator_events_per_second"] > 0
    assert lines[0].startswith("q2: correct")
    assert "q2 selection" in report.page(figures)
    assert list(tmp_path.iterdir()) == []


def test_a_query_with_wrong_results_has_no_figures_and_the_others_run(tmp_path, monkeypatch):
    def collect(query, config, folder, interval_ms):
        return [] if query.name == "q1" else [("no", "bid")]

    monkeypatch.setattr(nexmark, "collect", collect)
    arguments = ["nexmark", "--quick", "--json", "--query", "q1", "--query", "q2"]
    done = CliRunner().invoke(main, [*arguments, "--folder", str(tmp_path)])
    assert done.exit_code == 1
    figures = json.loads(done.stdout)
    assert figures["correct"] is False
    assert "9,200 rows are missing" in figures["queries"]["q1"]["wrong"]
    assert figures["queries"]["q1"].keys() == {"title", "correct", "wrong"}
    assert figures["queries"]["q2"]["correct"] is False
    assert "q1: WRONG" in done.stderr
    assert "wrong: " in report.page(figures)


def test_the_table_of_a_page_is_replaced(tmp_path):
    query = {"title": "pass through", "correct": True, "events": 10, "events_per_second": 9_000}
    query |= {"events_per_second_per_core": 5_000, "cores": 1.8, "state_bytes": 0}
    query |= {"snapshot_ms_p99": None, "snapshots_completed": 0}
    figures = {"queries": {"q0": query}, "generator_events_per_second": 1, "checked_events": 10}
    figures |= {"workers": 2, "cores": 2, "python": "3.11", "load_average": 0, "stolen_percent": 0}
    path = tmp_path / "page.md"
    path.write_text("# Page\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nend\n")
    for _ in range(2):
        report.replace_table(path, figures)
        text = path.read_text()
        assert "| q0 pass through | 5 | 150 | 155 | 1.00 | 9 | 1.80 | 0.0 |  | 0 |" in text
        assert "old" not in text
        assert text.startswith("# Page\n")
        assert text.endswith("\nend\n")
    path.write_text("no table\n")
    with pytest.raises(ValueError, match="has no lines"):
        report.replace_table(path, figures)


# Failures


@pytest.mark.parametrize("name", ["q8", "q16", "q20"])
def test_a_query_is_right_after_a_worker_was_killed(tmp_path, name):
    config = NexmarkConfig(events=30_000, rate=600)
    killed = []
    workers = []

    def kill_after_a_snapshot(event):
        if event["event"] == "workers":
            workers[:] = event["pids"]
        elif event["event"] == "snapshot" and not killed:
            killed.append(workers[-1])
            os.kill(workers[-1], signal.SIGKILL)

    # The source stays open for a second, so that there is a snapshot before the job ends.
    query = replace(QUERIES[name], linger_seconds=1.0)
    with run_options(RunOptions(progress=kill_after_a_snapshot)):
        results = nexmark.collect(query, config, tmp_path, 50)
    assert killed
    assert workers[-1] != killed[0]  # other workers have ended the job
    assert Oracle(config).difference(query, results) is None
