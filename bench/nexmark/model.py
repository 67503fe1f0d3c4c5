"""The three kinds of events: people register, they open auctions, and they bid.

The fields are those of the published benchmark, in its order. Times are milliseconds since the
epoch, and prices are cents. The class attribute `kind` is what the benchmark calls `event_type`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Auction", "Bid", "Event", "Person", "is_auction", "is_bid", "is_person"]


class Person(NamedTuple):
    """A person who has registered."""

    kind = 0

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(NamedTuple):
    """An auction that has been opened."""

    kind = 1

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(NamedTuple):
    """A bid on an auction."""

    kind = 2

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


Event = Person | Auction | Bid


# The engine compiles these into its loops, which it does only if the numbers are constants.
def is_person(event: Event) -> bool:
    """Return whether an event is a new person."""
    return event.kind == 0


def is_auction(event: Event) -> bool:
    """Return whether an event is a new auction."""
    return event.kind == 1


def is_bid(event: Event) -> bool:
    """Return whether an event is a bid."""
    return event.kind == 2
