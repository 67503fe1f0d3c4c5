"""Reports that are updated with each bid: q15, q16 and q17."""

from __future__ import annotations

from typing import Any

from bench.nexmark.model import is_bid
from bench.nexmark.queries.query import Query, Row, day_of, minute_of
from penstock import (
    DataStream,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)

__all__ = ["QUERIES"]

#: Prices below the first limit have rank 1, those below the second have rank 2, others have rank 3.
LIMITS = 10_000, 1_000_000
MS_OF_MINUTE, MS_OF_DAY = 60_000, 86_400_000


def report_of_day(events: DataStream) -> DataStream:
    """q15: how many bids, bidders and auctions were there in a day, by rank of the price?"""
    return (
        events.filter(is_bid)
        .map(lambda bid: (bid.date_time // 86_400_000, bid.bidder, bid.auction, bid.price))
        .key_by(lambda bid: bid[0])
        .process(DayReport())
    )


def report_of_channel(events: DataStream) -> DataStream:
    """q16: the same for each channel and day, with the last minute in which there was a bid."""
    return (
        events.filter(is_bid)
        .map(lambda bid: (bid.channel, bid.date_time, bid.bidder, bid.auction, bid.price))
        .key_by(lambda bid: (bid[0], bid[1] // 86_400_000))
        .process(ChannelReport())
    )


class Report(KeyedProcessFunction):
    """Counts bids and different bidders and auctions: all, and those of each rank."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a key."""
        self.counts = runtime_context.get_state(ValueStateDescriptor("counts"))
        #: For each bidder and auction, the bits of the ranks that its bids have had.
        self.bidders = runtime_context.get_map_state(MapStateDescriptor("bidders"))
        self.auctions = runtime_context.get_map_state(MapStateDescriptor("auctions"))

    def count(self, bidder: int, auction: int, price: int) -> Row:
        """Count a bid, and return the twelve counts."""
        counts = list(self.counts.value() or (0,) * 12)
        rank = 1 if price < LIMITS[0] else 2 if price < LIMITS[1] else 3
        counts[0] += 1
        counts[rank] += 1
        for seen, id, place in ((self.bidders, bidder, 4), (self.auctions, auction, 8)):
            ranks = seen.get(id) or 0
            if not ranks:
                counts[place] += 1
            if not ranks >> rank & 1:
                counts[place + rank] += 1
                seen.put(id, ranks | 1 << rank)
        updated = tuple(counts)
        self.counts.update(updated)
        return updated


class DayReport(Report):
    """Emits `(day, counts …)` with each bid `(day, bidder, auction, price)`."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        """Count a bid."""
        day, *bid = value
        return ((day_of(day), *self.count(*bid)),)


class ChannelReport(Report):
    """Emits `(channel, day, minute, counts …)`."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a key."""
        super().open(runtime_context)
        self.latest = runtime_context.get_state(ValueStateDescriptor("latest minute"))

    def process_element(self, value: Row, ctx: Any) -> Any:
        """Count a bid `(channel, time, bidder, auction, price)`."""
        channel, date_time, *bid = value
        minute, latest = date_time // MS_OF_MINUTE, self.latest.value()
        if latest is None or minute > latest:
            self.latest.update(minute)
            latest = minute
        day = day_of(date_time // MS_OF_DAY)
        return ((channel, day, minute_of(latest), *self.count(*bid)),)


def report_of_auction(events: DataStream) -> DataStream:
    """q17: how many bids had an auction in a day, and what were their prices?"""
    return (
        events.filter(is_bid)
        .map(lambda bid: (bid.auction, bid.date_time // 86_400_000, bid.price))
        .key_by(lambda bid: (bid[0], bid[1]))
        .process(AuctionReport())
    )


class AuctionReport(KeyedProcessFunction):
    """Counts the bids `(auction, day, price)` of an auction, and combines their prices."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of an auction and day."""
        self.report = runtime_context.get_state(ValueStateDescriptor("report"))

    def process_element(self, value: Row, ctx: Any) -> Any:
        """Count a bid."""
        auction, day, price = value
        low, middle, high, least, most, total = self.report.value() or (0, 0, 0, price, price, 0)
        if price < LIMITS[0]:
            low += 1
        elif price < LIMITS[1]:
            middle += 1
        else:
            high += 1
        least, most, total = min(least, price), max(most, price), total + price
        self.report.update((low, middle, high, least, most, total))
        bids = low + middle + high
        average = total // bids
        row = (auction, day_of(day), bids, low, middle, high, least, most, average, total)
        return (row,)


QUERIES = (
    Query("q15", "report of a day", report_of_day, events=3_000_000, key=1),
    Query("q16", "report of a channel", report_of_channel, events=1_200_000, key=2),
    Query("q17", "report of an auction", report_of_auction, events=4_000_000, key=2),
)
