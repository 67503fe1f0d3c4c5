"""Queries that look at one event at a time: q0, q1, q2, q14, q21 and q22."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from bench.nexmark.model import Bid, is_bid
from bench.nexmark.queries.query import Query, Row
from penstock import DataStream

__all__ = ["QUERIES"]

EUROS = Decimal("0.908")
LOW, HIGH = Decimal(1_000_000), Decimal(50_000_000)
MS_OF_HOUR = 3_600_000
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
CHANNEL_ID = re.compile("(?:&|^)channel_id=([^&]*)")


def pass_through(events: DataStream) -> DataStream:
    """q0: emit the bids."""
    return events.filter(is_bid).map(
        lambda bid: (bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)
    )


def convert_currency(events: DataStream) -> DataStream:
    """q1: emit the bids with their prices in euros."""
    return events.filter(is_bid).map(
        lambda bid: (bid.auction, bid.bidder, EUROS * bid.price, bid.date_time, bid.extra)
    )


def select(events: DataStream) -> DataStream:
    """q2: emit the bids on every 123rd auction."""
    chosen = events.filter(is_bid).filter(lambda bid: bid.auction % 123 == 0)
    return chosen.map(lambda bid: (bid.auction, bid.price))


def calculate(events: DataStream) -> DataStream:
    """q14: emit bids of a range of prices, with the kind of time and a count of letters."""
    return events.filter(is_bid).filter(is_middling).map(describe)


def is_middling(bid: Bid) -> bool:
    """Return whether the price of a bid in euros is between two limits."""
    return LOW < EUROS * bid.price < HIGH


def describe(bid: Bid) -> Row:
    """Return a bid with its price in euros, the kind of its time and the letters c in it."""
    hour = bid.date_time // MS_OF_HOUR % 24
    if 8 <= hour <= 18:
        kind = "dayTime"
    elif hour <= 6 or hour >= 20:
        kind = "nightTime"
    else:
        kind = "otherTime"
    euros, letters = EUROS * bid.price, count_char(bid.extra, "c")
    return bid.auction, bid.bidder, euros, kind, bid.date_time, bid.extra, letters


def count_char(text: str, char: str) -> int:
    """Return how often a letter occurs in a text: the function of a user, as SQL sees it."""
    return text.count(char)


def add_channel_id(events: DataStream) -> DataStream:
    """q21: emit the bids with the id of their channel, if it has one."""
    return events.filter(is_bid).flat_map(with_channel_id)


def with_channel_id(bid: Bid) -> Any:
    """Yield a bid with the id of its channel, which may be in its URL."""
    id = CHANNEL_IDS.get(bid.channel.lower())
    if id is None:
        found = CHANNEL_ID.search(bid.url)
        if found is None:
            return
        id = found[1]
    yield bid.auction, bid.bidder, bid.price, bid.channel, id


def split_url(events: DataStream) -> DataStream:
    """q22: emit the bids with the three folders of their URLs."""
    return events.filter(is_bid).map(with_folders)


def with_folders(bid: Bid) -> Row:
    """Return a bid with the first three folders of its URL."""
    _, _, _, first, second, third, *_ = bid.url.split("/")
    return bid.auction, bid.bidder, bid.price, bid.channel, first, second, third


QUERIES = (
    Query("q0", "pass through", pass_through, events=18_000_000),
    Query("q1", "currency conversion", convert_currency, events=15_000_000),
    Query("q2", "selection", select, events=15_000_000),
    Query("q14", "calculation with a user's function", calculate, events=10_000_000),
    Query("q21", "channel id", add_channel_id, events=6_000_000),
    Query("q22", "directories of the URL", split_url, events=8_000_000),
)
