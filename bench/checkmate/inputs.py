"""The inputs of `checkmate`: bids, people with auctions, and the links of a growing graph.

A record has a *number*, from which its place in the input follows, and so the time at which it is
due. Blocks of records are dealt out to the splits in turns. So all splits together have the same
records at any parallelism. With a hot key, a fifth of the records are of one key.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.nexmark.generator import BIDS as BIDS_OF_EPOCH
from bench.nexmark.generator import EPOCH, EPOCHS, FIRST_PERSON, Generator, NexmarkConfig
from bench.nexmark.generator import OFFERS as OFFERS_OF_EPOCH
from bench.nexmark.model import Auction, Bid, Person

__all__ = [
    "BID_WINDOW",
    "HOT_NODE",
    "INPUTS",
    "NO_ROOT",
    "OFFER_WINDOW",
    "Input",
    "SplitSlices",
    "read_records",
]

#: One record in this many is of the hot key: 20 %.
HOT_ONE_IN = 5
#: The state of the hot sellers, so that q3 joins them.
HOT_STATE = "OR"
#: The numbers of a window of bids, and of a window of people and auctions. There are 4 people and
#: auctions in 50 numbers, and 46 bids.
BID_WINDOW, OFFER_WINDOW = 100_000, 500_000

#: The nodes from which others are to be reached.
ROOTS = 4
HOT_NODE = 0
#: The links of a block, and those of them that lead to new nodes.
LINK_BLOCK, NEW_NODES = 250, 150
#: A new node is linked from one of so many nodes before it. The links of a block are shuffled, so
#: a link often comes after those behind it, and a root reaches several nodes one after the other.
NEAR = 64
#: The other links are between so many newest nodes.
RECENT = 2_000
#: The root in a record that is a link.
NO_ROOT = -1


class Input(ABC):
    """Describes one kind of input."""

    @property
    @abstractmethod
    def block(self) -> int:
        """The number of records in a block."""

    @abstractmethod
    def records(self, block: int, hot: bool) -> list[Any]:
        """Return the records of a block.

        Arguments:
            block: the number of the block.
            hot: whether a fifth of the records are of one key.
        """

    @abstractmethod
    def place(self, number: int) -> tuple[int, int]:
        """Return the block of the record with a number, and its index in the block."""

    def index_in_split(self, number: int, splits: int) -> int:
        """Return how many records of its split come before the record with a number."""
        block, index = self.place(number)
        return block // splits * self.block + index


@dataclass(frozen=True)
class Events(Input):
    """Events of Nexmark: the bids, or the others. The time of an event is its number.

    Arguments:
        first: the place of the first of these events in an epoch.
        of_epoch: the number of these events in an epoch.
    """

    first: int
    of_epoch: int

    @property
    def block(self) -> int:
        """The number of these events in a block of the generator."""
        return self.of_epoch * EPOCHS

    def place(self, number: int) -> tuple[int, int]:
        """Return the block and the index of the event with a number."""
        epoch, place = divmod(number, EPOCH)
        block, epoch = divmod(epoch, EPOCHS)
        return block, epoch * self.of_epoch + place - self.first

    def records(self, block: int, hot: bool) -> list[Any]:
        """Return the events of a block."""
        generator = _generator()
        if self.first:
            bids = generator.bids(block)
            return [_hot_bid(bid) for bid in bids] if hot else bids
        offers = generator.people_and_auctions(block)
        return [_hot_offer(offer) for offer in offers] if hot else offers


class Links(Input):
    """Links of a growing graph: tuples of the source, `NO_ROOT`, the target and the number.

    Each block has new nodes, each with a link from a node shortly before it. The other links are
    between recent nodes, so the graph has cycles. The first nodes are the roots, which form a
    cycle. A record `(root, root, 0, number)` says that a root is to be followed.

    With a hot key, a fifth of the links lead from one node, and a fifth lead to it.
    """

    @property
    def block(self) -> int:
        """The number of links in a block."""
        return LINK_BLOCK

    def place(self, number: int) -> tuple[int, int]:
        """Return the block and the index of the link with a number."""
        return divmod(number, LINK_BLOCK)

    def records(self, block: int, hot: bool) -> list[Any]:
        """Return the links of a block."""
        rng = random.Random(block)
        first = ROOTS + block * NEW_NODES
        links: list[tuple[int, int, int]] = []
        for node in range(first, first + NEW_NODES):
            links.append((max(0, node - 1 - rng.randrange(NEAR)), NO_ROOT, node))
        if block == 0:
            for root in range(ROOTS):
                links.append((root, NO_ROOT, (root + 1) % ROOTS))
                links.append((root, root, 0))
        oldest, newest = max(0, first - RECENT), first + NEW_NODES
        for index in range(LINK_BLOCK - len(links)):
            source, target = rng.randrange(oldest, newest), rng.randrange(oldest, newest)
            if hot and index < 2 * LINK_BLOCK // HOT_ONE_IN:
                source, target = (HOT_NODE, target) if index % 2 else (source, HOT_NODE)
            links.append((source, NO_ROOT, target))
        rng.shuffle(links)
        return [(*link, block * LINK_BLOCK + index) for index, link in enumerate(links)]


INPUTS: dict[str, Input] = {
    "bids": Events(OFFERS_OF_EPOCH, BIDS_OF_EPOCH),
    "offers": Events(0, OFFERS_OF_EPOCH),
    "links": Links(),
}


class SplitSlices:
    """Makes the records of one split, in slices that end with a block.

    Arguments:
        source: the kind of input.
        hot: whether a fifth of the records are of one key.
        split, splits: the index of the split, and their number.
    """

    def __init__(self, source: Input, hot: bool, split: int, splits: int) -> None:
        self._source, self._hot, self._split, self._splits = source, hot, split, splits
        self._loaded = -1
        self._records: list[Any] = []

    def __call__(self, first: int, count: int) -> list[Any]:
        """Return at most `count` records, and at least one."""
        turn, start = divmod(first, self._source.block)
        if turn != self._loaded:
            block = turn * self._splits + self._split
            self._records = self._source.records(block, self._hot)
            self._loaded = turn
        return self._records[start : start + count]


def read_records(source: Input, hot: bool, positions: Sequence[int]) -> Iterator[Any]:
    """Yield the records that splits have emitted, one split after the other.

    Arguments:
        source: the kind of input.
        hot: whether a fifth of the records are of one key.
        positions: the number of records that each split has emitted.
    """
    for split, position in enumerate(positions):
        slices, first = SplitSlices(source, hot, split, len(positions)), 0
        while first < position:
            records = slices(first, position - first)
            yield from records
            first += len(records)


@cache
def _generator() -> Generator:
    """Return the generator of events without hot keys, with one event in a millisecond from 0."""
    return Generator(
        NexmarkConfig(0, rate=1_000, base_time=0, hot_sellers=1, hot_bidders=1, hot_auctions=1)
    )


def _is_hot(number: int) -> bool:
    """Return whether an event is of the hot key: one in five at each place of an epoch."""
    return (number + number // EPOCH) % HOT_ONE_IN == 0


def _hot_bid(bid: Bid) -> Bid:
    """Return a bid, as one of the hot bidder if it is hot."""
    return bid._replace(bidder=FIRST_PERSON) if _is_hot(bid.date_time) else bid


def _hot_offer(offer: Person | Auction) -> Person | Auction:
    """Return an event, as one of the hot seller if it is hot.

    The hot seller is the first person of each window, so that q8 joins it.
    """
    number = offer.date_time
    if isinstance(offer, Person):
        return offer._replace(state=HOT_STATE) if number % OFFER_WINDOW == 0 else offer
    if not _is_hot(number):
        return offer
    return offer._replace(seller=FIRST_PERSON + number // OFFER_WINDOW * OFFER_WINDOW // EPOCH)
