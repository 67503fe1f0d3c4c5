"""Queries with windows: q5, q7, q8, q11 and q12."""

from __future__ import annotations

from typing import Any

from bench.nexmark.model import is_auction, is_bid, is_person
from bench.nexmark.queries.query import Query, Row, first_field
from penstock import (
    AggregateFunction,
    DataStream,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

__all__ = ["QUERIES"]

#: The groups in which the highest bid of a window is found, before the highest of all groups.
GROUPS = 128


def count_two(a: Row, b: Row) -> Row:
    """Return the sum of two records `(key, count)`."""
    return a[0], a[1] + b[1]


def hot_items(events: DataStream) -> DataStream:
    """q5: which auctions had the most bids in the last 10 seconds? Answered every 2 seconds."""
    counts = (
        events.filter(is_bid)
        .map(lambda bid: (bid.auction, 1))
        .key_by(first_field)
        .window(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(2)))
        .reduce(count_two, lambda _, window, counts: [(window.end, *count) for count in counts])
    )
    return (
        counts.key_by(first_field)
        .window(TumblingEventTimeWindows.of(Time.seconds(2)))
        .aggregate(MostBids(), only_result)
    )


class MostBids(AggregateFunction):
    """Keeps the auctions with the most bids, of records `(end of window, auction, bids)`."""

    def create_accumulator(self) -> list[Row]:
        """Return an empty list."""
        return []

    def add(self, value: Row, accumulator: list[Row]) -> list[Row]:
        """Keep a record if no other has more bids."""
        return keep_highest(accumulator, [value], 2)

    def get_result(self, accumulator: list[Row]) -> list[Row]:
        """Return the records with the most bids."""
        return accumulator

    def merge(self, a: list[Row], b: list[Row]) -> list[Row]:
        """Return the records with the most bids of both."""
        return keep_highest(a, b, 2)


def highest_bid(events: DataStream) -> DataStream:
    """q7: which bids had the highest price in 10 seconds?

    The highest bids are found in groups first, so that no subtask gets all bids.
    """
    size = TumblingEventTimeWindows.of(Time.seconds(10))
    of_groups = (
        events.filter(is_bid)
        .map(lambda bid: (bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra))
        .key_by(lambda bid: bid[2] % GROUPS)
        .window(size)
        .aggregate(HighestPrice(), only_result)
    )
    return of_groups.window_all(size).aggregate(HighestPrice(), only_result_of_all)


class HighestPrice(MostBids):
    """Keeps the bids with the highest price."""

    def add(self, value: Row, accumulator: list[Row]) -> list[Row]:
        """Keep a bid if no other has a higher price."""
        if accumulator and value[2] < accumulator[0][2]:
            return accumulator
        return keep_highest(accumulator, [value], 2)


def keep_highest(a: list[Row], b: list[Row], field: int) -> list[Row]:
    """Return the rows of two lists with the highest value in a field."""
    if not a or not b or a[0][field] == b[0][field]:
        return a + b
    return a if a[0][field] > b[0][field] else b


def only_result(_key: Any, _window: Any, results: list[Any]) -> Any:
    """Emit what the aggregation of a window has returned, which is a list of records."""
    return results[0]


def only_result_of_all(_window: Any, results: list[Any]) -> Any:
    """Emit the same for a window of all keys."""
    return results[0]


def new_users(events: DataStream) -> DataStream:
    """q8: who has registered and opened auctions in the same 10 seconds?"""
    people = events.filter(is_person).map(
        lambda person: (person.id, person.name, person.date_time // 10_000 * 10_000)
    )
    sellers = events.filter(is_auction).map(lambda auction: (auction.seller,))
    return (
        people.co_group(sellers)
        .where(first_field)
        .equal_to(first_field)
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .apply(people_with_auctions)
    )


def people_with_auctions(people: list[Row], sellers: list[Row]) -> list[Row]:
    """Return the people of a window, if there are auctions of them in the same window."""
    return list(people) if sellers else []


def user_sessions(events: DataStream) -> DataStream:
    """q11: how many bids did a user make in a session, which ends after 10 quiet seconds?"""
    return count_bids_of_users(events, EventTimeSessionWindows.with_gap(Time.seconds(10)))


def processing_time_windows(events: DataStream) -> DataStream:
    """q12: how many bids does a user make in 10 seconds of processing time?"""
    return count_bids_of_users(events, TumblingProcessingTimeWindows.of(Time.seconds(10)))


def short_processing_time_windows(events: DataStream) -> DataStream:
    """q12 with windows of half a second, so that they fire before a small input has ended."""
    return count_bids_of_users(events, TumblingProcessingTimeWindows.of(Time.milliseconds(500)))


def count_bids_of_users(events: DataStream, windows: Any) -> DataStream:
    """Count the bids of each user and window, and emit them with the ends of the window."""
    return (
        events.filter(is_bid)
        .map(lambda bid: (bid.bidder, 1))
        .key_by(first_field)
        .window(windows)
        .reduce(
            count_two,
            lambda _, window, counts: [(*count, window.start, window.end) for count in counts],
        )
    )


QUERIES = (
    Query("q5", "hot items", hot_items, events=3_500_000),
    Query("q7", "highest bid", highest_bid, events=6_000_000),
    Query("q8", "new users", new_users, events=6_000_000),
    Query("q11", "user sessions", user_sessions, events=5_000_000),
    Query(
        "q12",
        "windows of processing time",
        processing_time_windows,
        events=7_000_000,
        linger_seconds=1.0,
        build_checked=short_processing_time_windows,
    ),
)
