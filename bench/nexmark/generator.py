"""The Nexmark generator: event *n* depends on the seed and on *n* alone.

It follows the generator of the published benchmark (github.com/nexmark/nexmark) and of Apache Beam
with their default configuration. Of 50 events in a row, the first is a person, three are auctions
and 46 are bids. Events have equal distances in time. A bid is on a *hot* auction or one of those
which are likely still open, and it is by a *hot* person or one of those who are active.

Events are made in blocks, with one array operation for a column of a block. The random numbers of a
block come from a generator that counts (Philox), whose counter is the kind of event and the number
of the block. So a block can be made without those before it, and bids without people and auctions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.nexmark.model import Auction, Bid, Event, Person
from bench.nexmark.texts import CHANNELS, CITIES, HOT_CHANNELS, STATES, TABLE, Texts, padding_bounds

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "AUCTIONS",
    "BIDS",
    "BIDS_OF_BLOCK",
    "BLOCK",
    "EPOCH",
    "EPOCHS",
    "FIRST_AUCTION",
    "FIRST_PERSON",
    "OFFERS",
    "PERSONS",
    "Generator",
    "NexmarkConfig",
]

PERSONS, AUCTIONS, BIDS = 1, 3, 46
#: The events of an *epoch*: one person, three auctions and 46 bids, in this order.
EPOCH = PERSONS + AUCTIONS + BIDS
#: The events of an epoch that are no bids.
OFFERS = PERSONS + AUCTIONS
#: The epochs of a block, and the events of a block.
EPOCHS = 50
BLOCK = EPOCHS * EPOCH
BIDS_OF_BLOCK = EPOCHS * BIDS

FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY, CATEGORIES = 1_000, 1_000, 10, 5
#: The ids beyond the newest that a bid or an auction may already refer to.
LEAD = 10
#: The newest hot person or auction is the first of this many.
HOT_GROUP = 100


@dataclass(frozen=True)
class NexmarkConfig:
    """The configuration of the generator, with the published values.

    Arguments:
        events: the number of events.
        seed: the seed of all random values.
        rate: the number of events in a second of event time.
        base_time: the time of the first event, in milliseconds since the epoch.
        active_people: the number of newest people who bid and sell.
        auctions_in_flight: the number of newest auctions that are bid on.
        hot_sellers: one in this many auctions is not of a hot seller.
        hot_bidders: one in this many bids is not by a hot bidder.
        hot_auctions: one in this many bids is not on a hot auction.
        person_bytes, auction_bytes: the average size of such an event. A bid has 100 bytes.
    """

    events: int
    seed: int = 1
    rate: int = 10_000
    base_time: int = 1_436_918_400_000
    active_people: int = 1_000
    auctions_in_flight: int = 100
    hot_sellers: int = 4
    hot_bidders: int = 4
    hot_auctions: int = 2
    person_bytes: int = 200
    auction_bytes: int = 500

    @property
    def bids(self) -> int:
        """The number of bids among the events."""
        epochs, rest = divmod(self.events, EPOCH)
        return epochs * BIDS + max(0, rest - PERSONS - AUCTIONS)


@dataclass
class Generator:
    """Makes events by their numbers.

    Arguments:
        config: the configuration.
    """

    config: NexmarkConfig
    _texts: Texts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._texts = Texts.of(self.config.seed)

    def block(self, number: int) -> tuple[list[Event], list[int]]:
        """Return the events of a block and their times.

        Arguments:
            number: block *i* begins with event *i * BLOCK*. The last one may be shorter.
        """
        registered, bids = self.people_and_auctions(number), self.bids(number)
        events: list[Event] = []
        for epoch in range(EPOCHS):
            events += registered[epoch * OFFERS : epoch * OFFERS + OFFERS]
            events += bids[epoch * BIDS : epoch * BIDS + BIDS]
        times = self._times(np.arange(number * BLOCK, (number + 1) * BLOCK)).tolist()
        left = max(0, self.config.events - number * BLOCK)
        return (events, times) if left >= BLOCK else (events[:left], times[:left])

    def bid_columns(self, number: int) -> pa.RecordBatch:
        """Return the bids of a block as columns of Arrow, with the names of the fields of `Bid`."""
        import pyarrow as pa

        auctions, bidders, prices, channels, times, paddings = self._columns_of_bids(number)
        tables = self._texts.arrow
        batch = pa.record_batch(
            {
                "auction": auctions,
                "bidder": bidders,
                "price": prices,
                "channel": tables["channels"].take(pa.array(channels)),
                "url": tables["urls"].take(pa.array(channels)),
                "date_time": times,
                "extra": tables["bid_paddings"].take(pa.array(paddings)),
            }
        )
        return batch.slice(0, max(0, self.config.bids - number * BIDS_OF_BLOCK))

    def people_and_auctions(self, number: int) -> list[Event]:
        """Return the people and auctions of a whole block, in order."""
        first = number * EPOCHS
        persons = self._persons(self._draw(Person, number), first)
        auctions = self._auctions(self._draw(Auction, number), first)
        events: list[Event] = []
        for epoch in range(EPOCHS):
            events.append(persons[epoch])
            events += auctions[epoch * AUCTIONS : epoch * AUCTIONS + AUCTIONS]
        return events

    def _draw(self, kind: Any, number: int) -> np.random.Generator:
        """Return the source of random numbers for the events of a kind in a block."""
        counter = [0, 0, kind.kind, number]
        return np.random.Generator(np.random.Philox(key=self.config.seed, counter=counter))

    def _persons(self, draw: np.random.Generator, first: int) -> list[Person]:
        texts, size = self._texts, (4, EPOCHS)
        epochs = np.arange(first, first + EPOCHS)
        times = self._times(epochs * EPOCH).tolist()
        cards = draw.integers(0, 10_000, size).T.tolist()
        names = draw.integers(0, len(texts.person_names), EPOCHS).tolist()
        emails = draw.integers(0, TABLE, EPOCHS).tolist()
        cities = draw.integers(0, len(CITIES), EPOCHS).tolist()
        states = draw.integers(0, len(STATES), EPOCHS).tolist()
        starts, lengths = draw.integers(0, 1 << 16, EPOCHS).tolist(), draw.random(EPOCHS).tolist()
        made = []
        for index, id in enumerate((epochs + FIRST_PERSON).tolist()):
            card = " ".join(f"{part:04d}" for part in cards[index])
            name, email = texts.person_names[names[index]], texts.emails[emails[index]]
            city, state = CITIES[cities[index]], STATES[states[index]]
            used = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
            extra = self._padding(used, self.config.person_bytes, starts[index], lengths[index])
            made.append(Person(id, name, email, card, city, state, times[index], extra))
        return made

    def _auctions(self, draw: np.random.Generator, first: int) -> list[Auction]:
        texts, config, count = self._texts, self.config, EPOCHS * AUCTIONS
        ids = np.arange(first * AUCTIONS, first * AUCTIONS + count)
        epochs = ids // AUCTIONS
        numbers = epochs * EPOCH + PERSONS + ids % AUCTIONS
        times = self._times(numbers)
        # On the average, an auction is open until as many others as are in flight have begun.
        later = self._times(numbers + config.auctions_in_flight * EPOCH // AUCTIONS)
        horizon = np.maximum((later - times) * 2, 1)
        expires = times + 1 + _below(draw, horizon)
        sellers = self._people(draw, epochs, config.hot_sellers, 0)
        prices, more = _prices(draw, count), _prices(draw, count)
        columns = zip(
            (ids + FIRST_AUCTION).tolist(),
            map(texts.item_names.__getitem__, draw.integers(0, TABLE, count).tolist()),
            map(texts.descriptions.__getitem__, draw.integers(0, TABLE, count).tolist()),
            prices.tolist(),
            (prices + more).tolist(),
            times.tolist(),
            expires.tolist(),
            sellers.tolist(),
            draw.integers(FIRST_CATEGORY, FIRST_CATEGORY + CATEGORIES, count).tolist(),
            draw.integers(0, 1 << 16, count).tolist(),
            draw.random(count).tolist(),
            strict=True,
        )
        made = []
        for *values, start, length in columns:
            used = 48 + len(values[1]) + len(values[2])
            extra = self._padding(used, config.auction_bytes, start, length)
            made.append(Auction(*values, extra))
        return made

    def bids(self, number: int) -> list[Bid]:
        """Return the bids of a whole block, in order."""
        texts = self._texts
        auctions, bidders, prices, channels, times, paddings = (
            column.tolist() for column in self._columns_of_bids(number)
        )
        columns = zip(
            auctions,
            bidders,
            prices,
            map(texts.channels.__getitem__, channels),
            map(texts.urls.__getitem__, channels),
            times,
            map(texts.bid_paddings.__getitem__, paddings),
            strict=True,
        )
        # A named tuple made in this way costs half of what `Bid(...)` costs.
        return list(map(partial(tuple.__new__, Bid), columns))

    def _columns_of_bids(self, number: int) -> tuple[np.ndarray, ...]:
        """Return the numbers of the bids of a block; for strings, their places in tables."""
        config, count, first = self.config, BIDS_OF_BLOCK, number * EPOCHS
        draw = self._draw(Bid, number)
        epochs = np.repeat(np.arange(first, first + EPOCHS), BIDS)
        numbers = epochs * EPOCH + PERSONS + AUCTIONS + np.tile(np.arange(BIDS), EPOCHS)
        newest = epochs * AUCTIONS + AUCTIONS - 1
        oldest = np.maximum(newest - config.auctions_in_flight, 0)
        auctions = oldest + _below(draw, newest - oldest + 1 + LEAD)
        hot = _below(draw, config.hot_auctions, count) > 0
        auctions[hot] = newest[hot] // HOT_GROUP * HOT_GROUP
        channels = _below(draw, CHANNELS, count) + len(HOT_CHANNELS)
        hot = draw.random(count) < 0.5
        channels[hot] = _below(draw, len(HOT_CHANNELS), count)[hot]
        return (
            auctions + FIRST_AUCTION,
            self._people(draw, epochs, config.hot_bidders, 1),
            _prices(draw, count),
            channels,
            self._times(numbers),
            _below(draw, TABLE, count),
        )

    def _people(
        self, draw: np.random.Generator, epochs: np.ndarray, hot_ratio: int, place: int
    ) -> np.ndarray:
        """Return the ids of those who sell or bid in some epochs.

        Arguments:
            draw: the source of random numbers.
            epochs: the epochs, which are the numbers of the newest people.
            hot_ratio: one in this many is not a hot person.
            place: the place of the hot person among a hundred. Sellers and bidders differ.
        """
        active = np.minimum(epochs + 1, self.config.active_people)
        people = epochs + 1 - active + _below(draw, active + LEAD)
        hot = _below(draw, hot_ratio, len(epochs)) > 0
        people[hot] = epochs[hot] // HOT_GROUP * HOT_GROUP + place
        return people + FIRST_PERSON

    def _times(self, numbers: np.ndarray) -> np.ndarray:
        """Return the times of the events with some numbers, in milliseconds since the epoch."""
        return self.config.base_time + numbers * 1_000 // self.config.rate

    def _padding(self, used: int, average: int, start: int, share: float) -> str:
        least, limit = padding_bounds(used, average)
        return self._texts.padding(start, least + int(share * (limit - least)))


def _below(draw: np.random.Generator, limit: Any, count: int | None = None) -> np.ndarray:
    """Return random whole numbers from 0 to below a limit, or below each of some limits."""
    size = len(limit) if count is None else count
    return (draw.random(size) * limit).astype(np.int64)


def _prices(draw: np.random.Generator, count: int) -> np.ndarray:
    """Return prices from 100 to 100,000,000 cents, whose logarithms are distributed evenly."""
    return np.rint(10.0 ** (draw.random(count) * 6.0) * 100.0).astype(np.int64)
