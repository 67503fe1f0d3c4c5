"""Data that looks real: a web log, orders of shops, messages of phones, and card payments.

Each function returns a list of dicts in the order in which they arrive. `time` is the time when
something happened, in milliseconds since the epoch. The same seed gives the same data.
"""

from __future__ import annotations

import random
from typing import Any

#: 2025-10-10 08:00 UTC
MORNING = 1_760_083_200_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

Record = dict[str, Any]

_PAGES = ("/", "/search", "/product/17", "/product/42", "/product/99", "/cart", "/checkout")


def _arriving(events: list[tuple[int, Record]]) -> list[Record]:
    """Return the records of pairs `(time of arrival, record)` in the order of their arrival."""
    return [record for _, record in sorted(events, key=lambda pair: pair[0])]


def web_log(seed: int = 1, visitors: int = 60, hours: int = 6) -> list[Record]:
    """Return the page views of visitors of a shop.

    Web servers forward their log within 5 seconds. A few views come from an app that was offline,
    up to two hours later.
    """
    draw = random.Random(seed)
    events = []
    for visitor in range(visitors):
        address = f"203.0.113.{visitor + 1}"
        now = MORNING + draw.randrange(hours * HOUR)
        for _ in range(draw.randint(1, 3)):
            page = draw.choice(_PAGES[:4])
            for _ in range(draw.randint(1, 12)):
                view = {
                    "time": now,
                    "visitor": address,
                    "page": page,
                    "bytes": draw.randrange(9000),
                }
                delay = draw.randrange(5 * SECOND)
                if draw.random() < 0.03:
                    delay = draw.randrange(MINUTE, 2 * HOUR)
                events.append((now + delay, view))
                page = draw.choice(_PAGES)
                now += int(draw.expovariate(1 / 90)) * SECOND + draw.randrange(1, SECOND)
            now += draw.randrange(31 * MINUTE, 90 * MINUTE)
    return _arriving(events)


def orders(seed: int = 1, shops: int = 5, hours: int = 12) -> list[Record]:
    """Return the orders of shops.

    Most orders arrive within 10 seconds. A shop whose line is down sends its orders when it is up
    again, up to three hours later; a few are found in the evening.
    """
    draw = random.Random(seed)
    events = []
    for shop in range(shops):
        down = MORNING + draw.randrange(hours * HOUR)
        up = down + draw.randrange(20 * MINUTE, 3 * HOUR)
        now = MORNING
        while now < MORNING + hours * HOUR:
            order = {"time": now, "shop": f"shop {shop + 1}", "cents": draw.randrange(300, 20_000)}
            arrival = now + draw.randrange(10 * SECOND)
            if down <= now < up:
                arrival = up + draw.randrange(10 * SECOND)
            elif draw.random() < 0.01:
                arrival = MORNING + hours * HOUR + draw.randrange(HOUR)
            events.append((arrival, order))
            now += int(draw.expovariate(1 / 240)) * SECOND + draw.randrange(1, SECOND)
    return _arriving(events)


def phone_messages(seed: int = 1, phones: int = 40, messages: int = 50) -> list[Record]:
    """Return the messages of phones, which send a message again if they get no answer."""
    draw = random.Random(seed)
    events = []
    for phone in range(phones):
        now = MORNING + draw.randrange(HOUR)
        for number in range(messages):
            message = {"time": now, "id": f"{phone}-{number}", "phone": phone, "steps": number * 7}
            arrival = now
            for _ in range(draw.choice((1, 1, 1, 2, 3))):
                arrival += draw.randrange(SECOND, 30 * SECOND)
                events.append((arrival, message))
            now += draw.randrange(MINUTE)
    return _arriving(events)


def payments(seed: int = 1, cards: int = 50, hours: int = 4) -> list[Record]:
    """Return the payments with credit cards, up to 2 seconds out of order.

    A thief first tries a stolen card with a small sum, and then spends a large one.
    """
    draw = random.Random(seed)
    events = []
    for card in range(cards):
        now = MORNING + draw.randrange(HOUR)
        while now < MORNING + hours * HOUR:
            sums = [draw.choice((draw.randrange(100, 20_000), draw.randrange(30, 100)))]
            if draw.random() < 0.05:
                sums = [draw.randrange(10, 100), draw.randrange(50_000, 90_000)]
            for cents in sums:
                country = draw.choice(("DE", "DE", "FR", "US"))
                payment = {"time": now, "card": f"card {card}", "cents": cents, "country": country}
                events.append((now + draw.randrange(2 * SECOND), payment))
                now += draw.randrange(10 * SECOND, 80 * SECOND)
            now += draw.randrange(5 * MINUTE, 40 * MINUTE)
    return _arriving(events)


def rules(seed: int = 1, hours: int = 4) -> list[Record]:
    """Return the limits that a bank sets for countries in the course of the day."""
    draw = random.Random(seed)
    changes = [{"time": MORNING, "country": c, "limit": 15_000} for c in ("DE", "FR", "US")]
    for number in range(1, hours * 2):
        time = MORNING + number * HOUR // 2
        country = draw.choice(("DE", "FR", "US"))
        changes.append({"time": time, "country": country, "limit": draw.randrange(5_000, 80_000)})
    return changes
