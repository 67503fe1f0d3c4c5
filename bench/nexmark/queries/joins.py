"""Joins without a window: q3, q13, q20 and q23.

Nothing is known about the order in which the two sides arrive. So the side that comes first waits
in the state, as in a join of two tables in SQL.
"""

from __future__ import annotations

from typing import Any

from bench.nexmark.model import Auction, Bid, Event, is_auction, is_bid, is_person
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

CATEGORY = 10


def local_items(events: DataStream) -> DataStream:
    """q3: who sells in three states in category 10, and in which auctions?"""
    people = (
        events.filter(is_person)
        .filter(lambda person: person.state in ("OR", "ID", "CA"))
        .map(lambda person: (person.id, person.name, person.city, person.state))
    )
    auctions = (
        events.filter(is_auction)
        .filter(lambda auction: auction.category == 10)
        .map(lambda auction: (auction.seller, auction.id))
    )
    return auctions.connect(people).key_by(first_field, first_field).process(JoinSeller())


class JoinSeller(KeyedCoProcessFunction):
    """Joins auctions `(seller, id)` with people `(id, name, city, state)`."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a person."""
        self.person = runtime_context.get_state(ValueStateDescriptor("person"))
        self.auctions = runtime_context.get_list_state(ListStateDescriptor("auctions"))

    def process_element1(self, value: Row, ctx: Any) -> Any:
        """Take an auction; it is kept only until its seller comes."""
        person = self.person.value()
        if person is None:
            self.auctions.add(value[1])
        else:
            yield *person, value[1]

    def process_element2(self, value: Row, ctx: Any) -> Any:
        """Take a person."""
        self.person.update(value[1:])
        for auction in self.auctions.get():
            yield *value[1:], auction
        self.auctions.clear()


def add_side_input(events: DataStream) -> DataStream:
    """q13: add a value to each bid, from a table that does not change."""
    return events.filter(is_bid).join_table(
        side_input,
        on=lambda bid: bid.auction % 10_000,
        function=lambda bid, value: (bid.auction, bid.bidder, bid.price, bid.date_time, value),
    )


def side_input() -> dict[int, str]:
    """Return the table, which each worker loads once: numbers, and the same numbers as text."""
    return {number: str(number) for number in range(10_000)}


def expand_bids(events: DataStream) -> DataStream:
    """q20: emit the bids on auctions of category 10, with the auctions."""
    return (
        events.filter(is_auction)
        .connect(events.filter(is_bid))
        .key_by(lambda auction: auction.id, lambda bid: bid.auction)
        .process(JoinAuction())
    )


class JoinAuction(KeyedCoProcessFunction):
    """Joins bids with auctions of one category.

    Auctions of other categories are not filtered out before, so that the bids on them need not wait
    for ever. They leave nothing but the knowledge that they are not wanted.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of an auction."""
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction"))
        self.early = runtime_context.get_list_state(ListStateDescriptor("early bids"))

    def process_element1(self, value: Auction, ctx: Any) -> Any:
        """Take an auction, and the bids that came before it."""
        auction = value[1:] if value.category == CATEGORY else ()
        self.auction.update(auction)
        if auction:
            for bid in self.early.get():
                yield *bid, *auction
        self.early.clear()

    def process_element2(self, value: Bid, ctx: Any) -> Any:
        """Take a bid."""
        auction = self.auction.value()
        if auction is None:
            self.early.add(value)
        return ((*value, *auction),) if auction else ()


def bids_of_sellers(events: DataStream) -> DataStream:
    """q23: emit the bids of people who also sell, with these people and each of their auctions."""
    people, auctions = events.filter(is_person), events.filter(is_auction)
    return people.union(auctions, events.filter(is_bid)).key_by(person_of).process(JoinPerson())


def person_of(event: Event) -> int:
    """Return the id of the person who registers, sells or bids."""
    if isinstance(event, Bid):
        return event.bidder
    return event.seller if isinstance(event, Auction) else event.id


class JoinPerson(KeyedProcessFunction):
    """Joins the person, the auctions and the bids of a key, whichever comes last."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a person."""
        self.person = runtime_context.get_state(ValueStateDescriptor("person"))
        self.auctions = runtime_context.get_list_state(ListStateDescriptor("auctions"))
        self.bids = runtime_context.get_list_state(ListStateDescriptor("bids"))

    def process_element(self, value: Event, ctx: Any) -> Any:
        """Take an event, and join it with those that are there."""
        if value.kind == 2:
            self.bids.add(value)
            people, auctions, bids = self.people(), self.auctions.get(), [value]
        elif value.kind == 1:
            self.auctions.add(value)
            people, auctions, bids = self.people(), [value], self.bids.get()
        else:
            self.person.update(value)
            people, auctions, bids = [value], self.auctions.get(), self.bids.get()
        if not people:
            return
        [person] = people
        pairs = [(auction, bid) for auction in auctions for bid in bids]
        for auction, bid in pairs:
            *of_bid, _, extra = bid[1:]
            yield *of_bid, extra, *person[:6], person.extra, *auction[1:]

    def people(self) -> list[Any]:
        """Return the person of the key, if known."""
        person = self.person.value()
        return [] if person is None else [person]


QUERIES = (
    Query("q3", "local items", local_items, events=6_000_000),
    Query("q13", "side input", add_side_input, events=8_000_000),
    Query("q20", "bids with their auctions", expand_bids, events=2_000_000),
    Query("q23", "bids of sellers", bids_of_sellers, events=1_000_000),
)
