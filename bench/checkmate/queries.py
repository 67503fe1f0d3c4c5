"""The queries of `checkmate`: their programs, and their right results.

q1, q3, q8 and q12 are those of Nexmark in the form that CheckMate runs. Its q8 and q12 are
*running*: they emit a result for each record, instead of those of a window when it ends. The cyclic
query finds the nodes of a growing graph that can be reached from some roots. For each root and node
it also counts the links over which the root reaches the node. A message on the loop that is
processed twice is seen by these counts.

No result depends on the order in which records arrive, so lost and doubled ones can be counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.checkmate.inputs import BID_WINDOW, NO_ROOT, OFFER_WINDOW
from bench.nexmark.generator import AUCTIONS, EPOCH, FIRST_AUCTION, FIRST_PERSON, PERSONS
from bench.nexmark.model import Auction, Person, is_auction, is_person
from bench.nexmark.queries.joins import CATEGORY, JoinSeller
from bench.nexmark.queries.query import Row, first_field
from bench.nexmark.queries.single_events import EUROS, convert_currency
from bench.nexmark.queries.windowed import count_two
from penstock import (
    CountTrigger,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    Time,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)

__all__ = ["QUERIES", "RunningQuery"]

STATES = ("OR", "ID", "CA")


@dataclass(frozen=True)
class RunningQuery:
    """Describes a query.

    Arguments:
        name: the name, which is that of CheckMate.
        input: the name of its input, of `INPUTS`.
        build: makes the stream of results from the stream of input records.
        number: returns the number of the input record that a result follows from.
        text: returns what identifies a result, as a line.
        expected: returns the texts of all right results of some input records.
        timed: whether the input has event times.
        keyed: whether there are keys, of which one may be hot.
    """

    name: str
    input: str
    build: Callable[[DataStream], DataStream]
    number: Callable[[Row], int]
    text: Callable[[Row], str]
    expected: Callable[[Iterable[Any]], Counter[str]]
    timed: bool = False
    keyed: bool = True

    def watermarks(self) -> WatermarkStrategy | None:
        """Return the watermark strategy of the source; None if there are no event times."""
        if not self.timed:
            return None
        return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda event, _: event.date_time
        )


# ---- q1: currency conversion


def text_of_bid(row: Row) -> str:
    """Return all but the padding of a converted bid."""
    return " ".join(map(str, row[:4]))


def expected_bids(bids: Iterable[Any]) -> Counter[str]:
    """Return the converted bids."""
    return Counter(f"{b.auction} {b.bidder} {EUROS * b.price} {b.date_time}" for b in bids)


# ---- q3: local items


def local_items(offers: DataStream) -> DataStream:
    """Join the auctions of a category with their sellers in three states, as q3 does.

    The results also have the id of the seller, from which the time of the registration follows.
    """
    people = (
        offers.filter(is_person)
        .filter(lambda person: person.state in ("OR", "ID", "CA"))
        .map(lambda person: (person.id, person.name, person.city, person.state, person.id))
    )
    auctions = (
        offers.filter(is_auction)
        .filter(lambda auction: auction.category == 10)
        .map(lambda auction: (auction.seller, auction.id))
    )
    return auctions.connect(people).key_by(first_field, first_field).process(JoinSeller())


def number_of_offer(row: Row) -> int:
    """Return the number of the later one of a person and an auction, the last two fields."""
    epoch, place = divmod(row[-1] - FIRST_AUCTION, AUCTIONS)
    return int(max((row[-2] - FIRST_PERSON) * EPOCH, epoch * EPOCH + PERSONS + place))


def text_of_offer(row: Row) -> str:
    """Return the ids of the person and the auction."""
    return f"{row[-2]} {row[-1]}"


def expected_items(offers: Iterable[Any]) -> Counter[str]:
    """Return the joined pairs of q3."""
    people, auctions = _people_and_auctions(offers)
    local = {person.id for person in people if person.state in STATES}
    return Counter(
        f"{auction.seller} {auction.id}"
        for auction in auctions
        if auction.category == CATEGORY and auction.seller in local
    )


def _people_and_auctions(offers: Iterable[Any]) -> tuple[list[Person], list[Auction]]:
    people: list[Person] = []
    auctions: list[Auction] = []
    for offer in offers:
        (people if isinstance(offer, Person) else auctions).append(offer)
    return people, auctions


# ---- q8: new users who sell, running


def new_users(offers: DataStream) -> DataStream:
    """Join people with the auctions that they open in the window of their registration."""
    size = OFFER_WINDOW
    people = offers.filter(is_person).map(
        lambda person: ((person.id, person.date_time // size), person.name, person.id)
    )
    auctions = offers.filter(is_auction).map(
        lambda auction: ((auction.seller, auction.date_time // size), auction.id)
    )
    return auctions.connect(people).key_by(first_field, first_field).process(JoinInWindow())


class JoinInWindow(JoinSeller):
    """Joins the auctions and the person of a window, and forgets them when it ends."""

    def process_element1(self, value: Row, ctx: Any) -> Any:
        """Take an auction."""
        self._forget_later(value, ctx)
        yield from super().process_element1(value, ctx)

    def process_element2(self, value: Row, ctx: Any) -> Any:
        """Take a person."""
        self._forget_later(value, ctx)
        yield from super().process_element2(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        """Forget what has come for this person and window."""
        self.person.clear()
        self.auctions.clear()
        return ()

    def _forget_later(self, value: Row, ctx: Any) -> None:
        end = (value[0][1] + 1) * OFFER_WINDOW
        ctx.timer_service().register_event_time_timer(end - 1)


def expected_users(offers: Iterable[Any]) -> Counter[str]:
    """Return the joined pairs of q8."""
    people, auctions = _people_and_auctions(offers)
    windows = {person.id: person.date_time // OFFER_WINDOW for person in people}
    return Counter(
        f"{auction.seller} {auction.id}"
        for auction in auctions
        if windows.get(auction.seller) == auction.date_time // OFFER_WINDOW
    )


# ---- q12: bids of a user, running


def count_bids(bids: DataStream) -> DataStream:
    """Count the bids of each user and window, and emit each count: `(user, count, number, start)`.

    CheckMate's windows are of processing time. Those of event time give the same results after a
    failure.
    """
    return (
        bids.map(lambda bid: (bid.bidder, 1, bid.date_time))
        .key_by(first_field)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(BID_WINDOW)))
        .trigger(CountTrigger.of(1))
        .reduce(
            lambda a, b: (*count_two(a, b), b[2]),
            lambda _, window, counts: [(*count, window.start) for count in counts],
        )
    )


def number_of_count(row: Row) -> int:
    """Return the number of the bid that was counted last."""
    return int(row[2])


def text_of_count(row: Row) -> str:
    """Return the user, the window and the count."""
    return f"{row[0]} {row[3]} {row[1]}"


def expected_counts(bids: Iterable[Any]) -> Counter[str]:
    """Return each count of each user and window."""
    totals = Counter((bid.bidder, bid.date_time // BID_WINDOW * BID_WINDOW) for bid in bids)
    return _counted((f"{user} {start}", total) for (user, start), total in totals.items())


def _counted(totals: Iterable[tuple[str, int]]) -> Counter[str]:
    return Counter(f"{of} {count}" for of, total in totals for count in range(1, total + 1))


# ---- the cyclic query: reachability


def reach(links: DataStream) -> DataStream:
    """Find the nodes that the roots reach: `(node, root, -count, number)`.

    A message on the loop is `(node, root, 0, number)`. The number is that of the link or root that
    caused it.
    """
    feedback = links.get_execution_environment().create_feedback("reached")
    found = links.union(feedback).key_by(first_field).process(Reach())
    feedback.close_with(found.filter(lambda record: record[2] == 0))
    return found.filter(lambda record: record[2] < 0)


class Reach(KeyedProcessFunction):
    """Keeps the links of a node, and how many links reach it from each root.

    When a root reaches the node for the first time, each target of the node gets a message. A link
    that comes later sends a message for each root that has reached the node.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a node."""
        self.targets = runtime_context.get_list_state(ListStateDescriptor("targets"))
        self.counts = runtime_context.get_state(ValueStateDescriptor("counts"))

    def process_element(self, value: Row, ctx: Any) -> Any:
        """Take a link, or the message that a root reaches this node."""
        node, root, target, number = value
        counts = self.counts.value() or {}
        if root == NO_ROOT:
            self.targets.add(target)
            return [(target, reached, 0, number) for reached in counts]
        count = counts.get(root, 0) + 1
        self.counts.update({**counts, root: count})
        found = [(node, root, -count, number)]
        if count == 1:
            found += [(target, root, 0, number) for target in self.targets.get()]
        return found


def number_of_reach(row: Row) -> int:
    """Return the number of the record that let a root reach a node."""
    return int(row[3])


def text_of_reach(row: Row) -> str:
    """Return the root, the node and the count."""
    return f"{row[1]} {row[0]} {-row[2]}"


def expected_reach(links: Iterable[Any]) -> Counter[str]:
    """Return each count of each root and node."""
    targets: dict[int, list[int]] = defaultdict(list)
    roots = []
    for source, root, target, _ in links:
        if root == NO_ROOT:
            targets[source].append(target)
        else:
            roots.append(root)
    totals: Counter[tuple[int, int]] = Counter()
    for root in roots:
        open_nodes = [root]
        totals[root, root] += 1
        while open_nodes:
            for target in targets.get(open_nodes.pop(), ()):
                totals[root, target] += 1
                if totals[root, target] == 1:
                    open_nodes.append(target)
    return _counted((f"{root} {node}", total) for (root, node), total in totals.items())


QUERIES = {
    query.name: query
    for query in (
        RunningQuery(
            "q1",
            "bids",
            convert_currency,
            number=lambda row: row[3],
            text=text_of_bid,
            expected=expected_bids,
            keyed=False,
        ),
        RunningQuery("q3", "offers", local_items, number_of_offer, text_of_offer, expected_items),
        RunningQuery(
            "q8", "offers", new_users, number_of_offer, text_of_offer, expected_users, timed=True
        ),
        RunningQuery(
            "q12", "bids", count_bids, number_of_count, text_of_count, expected_counts, timed=True
        ),
        RunningQuery("cyclic", "links", reach, number_of_reach, text_of_reach, expected_reach),
    )
}
