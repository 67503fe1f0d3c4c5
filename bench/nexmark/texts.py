"""The strings of the events, which are made once for a seed and then chosen from.

The published generator makes every string letter by letter. That would take longer here than the
queries do. So names, channels and the padding of bids come from tables, and the padding of people
and auctions is cut out of one long text. Lengths are distributed as in the published generator.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

__all__ = ["Texts", "padding_bounds"]

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
LAST_NAMES = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
#: The number of different names, descriptions and e-mail addresses, and of paddings of bids.
TABLE = 4_096
#: The number of letters of the text from which padding is cut.
LETTERS = 1 << 16
#: What a bid has besides its padding: four numbers of 8 bytes.
BID_SIZE = 32


def padding_bounds(size: int, average: int) -> tuple[int, int]:
    """Return the least length of the padding of an event, and the greatest plus one.

    Arguments:
        size: the size of the event without its padding, in bytes.
        average: the average size of such events with padding, in bytes.
    """
    wanted = average - size
    if wanted < 0:
        return 0, 1
    spread = round(wanted * 0.2)
    return wanted - spread, max(wanted + spread, wanted - spread + 1)


class Texts:
    """The tables of strings of one seed. Use `Texts.of(seed)`, which makes them once.

    Arguments:
        seed: the seed of the generator.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(f"texts {seed}")
        #: One long text of random letters.
        self.letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=LETTERS))
        self.person_names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
        self.emails = [f"{_string(draw, 7)}@{_string(draw, 5)}.com" for _ in range(TABLE)]
        self.item_names = [_string(draw, 20) for _ in range(TABLE)]
        self.descriptions = [_string(draw, 100) for _ in range(TABLE)]
        self.bid_paddings = [self._bid_padding(draw) for _ in range(TABLE)]
        #: The hot channels, then the others. Channel *i* always has the URL *i*.
        self.channels = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
        self.urls = [_url(draw) for _ in HOT_CHANNELS]
        self.urls += [_url_of_channel(draw, number) for number in range(CHANNELS)]

    @staticmethod
    @lru_cache(maxsize=4)
    def of(seed: int) -> Texts:
        """Return the tables of a seed."""
        return Texts(seed)

    @cached_property
    def arrow(self) -> dict[str, Any]:
        """The tables of the strings of bids as columns of Arrow."""
        import pyarrow as pa

        names = ("channels", "urls", "bid_paddings")
        return {name: pa.array(getattr(self, name)) for name in names}

    def padding(self, start: int, length: int) -> str:
        """Return `length` letters of the long text."""
        start %= LETTERS - length
        return self.letters[start : start + length]

    def _bid_padding(self, draw: random.Random) -> str:
        return self.padding(draw.randrange(LETTERS), draw.randrange(*padding_bounds(BID_SIZE, 100)))


def _string(draw: random.Random, most: int, gap: str = " ") -> str:
    """Return a random string of 3 to `most` - 1 letters, some of which are gaps."""
    letters: Sequence[str] = draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(3, most))
    return "".join(gap if draw.randrange(13) == 0 else letter for letter in letters).strip()


def _url(draw: random.Random) -> str:
    folders = "/".join(_string(draw, 5, "_") for _ in range(3))
    return f"https://www.nexmark.com/{folders}/item.htm?query=1"


def _url_of_channel(draw: random.Random, number: int) -> str:
    """Return the URL of a channel; nine of ten contain an id, which is the number reversed."""
    url = _url(draw)
    if draw.randrange(10) == 0:
        return url
    reverse = int(f"{number:032b}"[::-1], 2)
    return f"{url}&channel_id={min(reverse, (1 << 32) - reverse)}"
