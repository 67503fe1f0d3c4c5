"""Queries that keep some bids of a key: q18 and q19."""

from __future__ import annotations

from typing import Any

from bench.nexmark.model import Bid, is_bid
from bench.nexmark.queries.query import Query
from penstock import DataStream, KeyedProcessFunction, RuntimeContext, ValueStateDescriptor

__all__ = ["QUERIES"]

#: The number of highest bids that q19 keeps of an auction.
TOP = 10


def last_bid(events: DataStream) -> DataStream:
    """q18: which is the last bid of a bidder on an auction?"""
    return (
        events.filter(is_bid)
        .key_by(lambda bid: (bid.auction, bid.bidder))
        .reduce(lambda last, bid: bid if bid.date_time >= last.date_time else last)
    )


def top_bids(events: DataStream) -> DataStream:
    """q19: which are the ten highest bids of an auction?"""
    return events.filter(is_bid).key_by(lambda bid: bid.auction).process(TopBids())


class TopBids(KeyedProcessFunction):
    """Keeps the highest bids, and emits those whose rank changes, each with its rank.

    The rank comes second, since auction and rank are the key of the result.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of an auction."""
        self.top = runtime_context.get_state(ValueStateDescriptor("top"))

    def process_element(self, value: Bid, ctx: Any) -> Any:
        """Take a bid."""
        top = self.top.value() or ()
        if len(top) == TOP and top[-1].price >= value.price:
            return ()
        place = sum(1 for bid in top if bid.price >= value.price)
        top = (*top[:place], value, *top[place : TOP - 1])
        self.top.update(top)
        return [(bid.auction, place + rank, *bid[1:]) for rank, bid in enumerate(top[place:], 1)]


QUERIES = (
    Query("q18", "last bid", last_bid, events=3_000_000, key=2),
    Query("q19", "top ten bids of an auction", top_bids, events=2_000_000, key=2),
)
