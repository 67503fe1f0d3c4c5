"""Queries about the winning bids of auctions: q4, q6 and q9.

A bid counts if it is made while its auction is open. A bid may arrive before its auction, since
they come on different channels. Then it waits.
"""

from __future__ import annotations

from typing import Any

from bench.nexmark.model import Auction, Bid, is_auction, is_bid
from bench.nexmark.queries.query import Query, Row, first_field
from penstock import (
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)

__all__ = ["QUERIES"]

#: The number of auctions of a seller of which q6 gives the average.
LAST_AUCTIONS = 10


def average_price_of_category(events: DataStream) -> DataStream:
    """q4: emit the average of the winning bids of each category, whenever it changes."""
    auctions = events.filter(is_auction).map(
        lambda auction: (auction.id, auction.date_time, auction.expires, auction.category)
    )
    return (
        auctions.connect(prices(events))
        .key_by(first_field, first_field)
        .process(RaisedPrices())
        .key_by(first_field)
        .process(Averages())
    )


def average_price_of_seller(events: DataStream) -> DataStream:
    """q6: emit the average of the winning bids of a seller's last ten closed auctions."""
    auctions = events.filter(is_auction).map(
        lambda auction: (auction.id, auction.date_time, auction.expires, auction.seller)
    )
    return (
        auctions.connect(prices(events))
        .key_by(first_field, first_field)
        .process(FinalPrices())
        .key_by(first_field)
        .process(AverageOfLast())
    )


def winning_bids(events: DataStream) -> DataStream:
    """q9: emit each auction with its highest bid, whenever there is a higher one."""
    return (
        events.filter(is_auction)
        .connect(events.filter(is_bid))
        .key_by(lambda auction: auction.id, lambda bid: bid.auction)
        .process(HighestBids())
    )


def prices(events: DataStream) -> DataStream:
    """Return the bids as `(auction, time, price)`."""
    return events.filter(is_bid).map(lambda bid: (bid.auction, bid.date_time, bid.price))


class RaisedPrices(KeyedCoProcessFunction):
    """Finds the highest price of each auction.

    The first input has `(auction, opened, expires, group)`, the second `(auction, time, price)`.
    Emits `(group, difference to the price before, number of new auctions)`.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of an auction."""
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction"))
        self.highest = runtime_context.get_state(ValueStateDescriptor("highest"))
        self.early = runtime_context.get_list_state(ListStateDescriptor("early bids"))

    def process_element1(self, value: Row, ctx: Any) -> Any:
        """Open an auction, and look at the bids that came before it."""
        self.auction.update(value)
        for bid in self.early.get():
            yield from self.offer(value, bid)
        self.early.clear()

    def process_element2(self, value: Row, ctx: Any) -> Any:
        """Take a bid."""
        auction = self.auction.value()
        if auction is None:
            self.early.add(value)
            return ()
        return self.offer(auction, value)

    def offer(self, auction: Row, bid: Row) -> list[Row]:
        """Return the change if a bid is the highest."""
        _, opened, expires, group = auction
        _, time, price = bid
        if not opened <= time <= expires:
            return []
        highest = self.highest.value()
        if highest is None:
            self.highest.update(price)
            return [(group, price, 1)]
        if price <= highest:
            return []
        self.highest.update(price)
        return [(group, price - highest, 0)]


class Averages(KeyedProcessFunction):
    """Sums up `(group, difference, number)` and emits `(group, average)`."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a group."""
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Row, ctx: Any) -> Any:
        """Add a difference."""
        group, difference, number = value
        total, count = self.total.value() or (0, 0)
        total, count = total + difference, count + number
        self.total.update((total, count))
        yield group, total // count


class FinalPrices(RaisedPrices):
    """Emits `(group, expires, auction, price)` when an auction closes that has a bid."""

    def process_element1(self, value: Row, ctx: Any) -> Any:
        """Open an auction, and set the time at which it closes."""
        list(super().process_element1(value, ctx))
        ctx.timer_service().register_event_time_timer(value[2])
        return ()

    def process_element2(self, value: Row, ctx: Any) -> Any:
        """Take a bid."""
        super().process_element2(value, ctx)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        """Close an auction."""
        highest = self.highest.value()
        if highest is not None:
            id, _, expires, group = self.auction.value()
            self.highest.clear()
            yield group, expires, id, highest


class AverageOfLast(KeyedProcessFunction):
    """Emits `(group, average)` of the last ten of `(group, expires, auction, price)`.

    Auctions are closed by different subtasks, so they do not arrive in the order of their ends.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a group."""
        self.last = runtime_context.get_state(ValueStateDescriptor("last auctions"))

    def process_element(self, value: Row, ctx: Any) -> Any:
        """Take the price of an auction."""
        last = tuple(sorted((*(self.last.value() or ()), value[1:]))[-LAST_AUCTIONS:])
        self.last.update(last)
        yield value[0], sum(price for _, _, price in last) // len(last)


class HighestBids(KeyedCoProcessFunction):
    """Finds the highest bid of each auction; of two equal prices, the earlier one wins."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of an auction."""
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction"))
        self.highest = runtime_context.get_state(ValueStateDescriptor("highest"))
        self.early = runtime_context.get_list_state(ListStateDescriptor("early bids"))

    def process_element1(self, value: Auction, ctx: Any) -> Any:
        """Open an auction, and look at the bids that came before it."""
        self.auction.update(value)
        for bid in self.early.get():
            yield from self.offer(value, bid)
        self.early.clear()

    def process_element2(self, value: Bid, ctx: Any) -> Any:
        """Take a bid."""
        auction = self.auction.value()
        if auction is None:
            self.early.add(value)
            return ()
        return self.offer(auction, value)

    def offer(self, auction: Auction, bid: Bid) -> list[Row]:
        """Return the auction with a bid, if the bid is the highest."""
        if not auction.date_time <= bid.date_time <= auction.expires:
            return []
        highest = self.highest.value()
        if highest is not None and (highest[1], -highest[2]) >= (bid.price, -bid.date_time):
            return []
        self.highest.update((bid.bidder, bid.price, bid.date_time, bid.extra))
        return [(*auction, bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)]


QUERIES = (
    Query("q4", "average price of a category", average_price_of_category, events=2_000_000, key=1),
    Query("q6", "average price of a seller", average_price_of_seller, events=1_500_000, key=1),
    Query("q9", "winning bids", winning_bids, events=2_000_000, key=1),
)
