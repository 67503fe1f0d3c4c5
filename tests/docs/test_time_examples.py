"""The examples of time: each gives what a naive program gives that sees one record at a time."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "time"
NAMES = (
    "replay",
    "simulated_data",
    "web_sessions",
    "hourly_counts",
    "deduplication",
    "fraud_rule",
    "broadcast_rules",
)
Records = list[dict[str, Any]]
Results = dict[str, Records]
SEED = 3


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Results]]:
    """Return a function that runs the `main` of an example, and returns what it wrote."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str) -> Results:
        arguments = ["--output", str(tmp_path), "--seed", str(SEED)]
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        importlib.import_module(name).main()
        return {folder.name: _read(folder) for folder in tmp_path.iterdir()}

    yield run
    for name in NAMES:
        sys.modules.pop(name, None)


def _read(folder: Path) -> Records:
    return [
        json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()
    ]


def _data(name: str) -> Records:
    records: Records = getattr(importlib.import_module("simulated_data"), name)(SEED)
    return records


def _sorted(records: Records) -> list[str]:
    return sorted(json.dumps(record, sort_keys=True) for record in records)


def _with_watermarks(records: Records, delay: int) -> Iterator[tuple[Any, int]]:
    """Yield each record with the watermark after it."""
    highest = -(2**63)
    for record in records:
        highest = max(highest, record["time"])
        yield record, highest - delay - 1
    yield None, 2**63 - 1


def test_sessions_of_a_web_log_are_corrected_by_late_views(example: Any):
    found = example("web_sessions")
    gap, lateness = 30 * 60_000, 10 * 60_000
    alive: dict[str, list[Any]] = {}
    emitted: Records = []
    late: Records = []
    before = -(2**63)

    def emit(visitor: str, start: int, end: int, views: Records) -> None:
        pages = sorted((view["time"], view["page"]) for view in views)
        size = sum(view["bytes"] for view in views)
        times = {"visitor": visitor, "from": start, "to": end - gap}
        ends = {"entry": pages[0][1], "exit": pages[-1][1]}
        emitted.append({**times, "pages": len(views), "bytes": size, **ends})

    for view, watermark in _with_watermarks(_data("web_log"), 5_000):
        if view is not None:
            sessions = alive.setdefault(view["visitor"], [])
            new = [view["time"], view["time"] + gap, [view]]
            for old in [s for s in sessions if s[0] <= new[1] and new[0] <= s[1]]:
                sessions.remove(old)
                new = [min(new[0], old[0]), max(new[1], old[1]), old[2] + new[2]]
            if new[1] - 1 + lateness <= before:
                late.append(view)
            else:
                sessions.append(new)
                if new[1] - 1 <= before:
                    emit(view["visitor"], *new)
        for visitor, sessions in alive.items():
            for session in sessions:
                if before < session[1] - 1 <= watermark:
                    emit(visitor, *session)
            sessions[:] = [s for s in sessions if s[1] - 1 + lateness > watermark]
        before = watermark
    assert _sorted(found["sessions"]) == _sorted(emitted)
    assert _sorted(found["late"]) == _sorted(late)
    corrected = [(s["visitor"], s["from"]) for s in emitted]
    assert late and len(set(corrected)) < len(corrected), "the data has no late views"


def test_counts_of_an_hour_have_revisions(example: Any):
    found = example("hourly_counts")
    hour, lateness = 3_600_000, 4 * 3_600_000
    windows: dict[tuple[str, int], list[int]] = {}
    emitted: Records = []
    late: Records = []
    before = -(2**63)

    def emit(key: tuple[str, int]) -> None:
        count, cents, revision = windows[key]
        windows[key][2] += 1
        result = {"orders": count, "cents": cents, "revision": revision}
        emitted.append({"shop": key[0], "hour": key[1], **result})

    for order, watermark in _with_watermarks(_data("orders"), 10_000):
        if order is not None:
            start = order["time"] // hour * hour
            if start + hour - 1 + lateness <= before:
                late.append(order)
            else:
                window = windows.setdefault((order["shop"], start), [0, 0, 0])
                window[0] += 1
                window[1] += order["cents"]
                if start + hour - 1 <= before:
                    emit((order["shop"], start))
        for key in windows:
            if before < key[1] + hour - 1 <= watermark:
                emit(key)
        before = watermark
    assert _sorted(found["counts"]) == _sorted(emitted)
    assert _sorted(found["too late"]) == _sorted(late)
    assert late and any(count["revision"] > 0 for count in emitted), "the data has no late orders"


def test_each_message_is_kept_once(example: Any):
    found = example("deduplication")["messages"]
    sent = {message["id"]: message for message in _data("phone_messages")}
    assert _sorted(found) == _sorted(list(sent.values()))
    assert len(_data("phone_messages")) > len(sent), "the data has no repeated messages"


def test_stolen_cards_are_reported(example: Any):
    found = example("fraud_rule")["alerts"]
    expected: Records = []
    small: dict[str, int] = {}
    for payment in sorted(_data("payments"), key=lambda payment: payment["time"]):
        card, time, cents = payment["card"], payment["time"], payment["cents"]
        if cents >= 50_000 and time - small.get(card, -(10**12)) < 60_000:
            expected.append({"card": card, "time": time, "cents": cents})
        if cents < 100:
            small[card] = time
    assert _sorted(found) == _sorted(expected)
    assert expected, "the data has no stolen card"


def test_payments_are_checked_against_the_rules_of_their_time(example: Any):
    found = example("broadcast_rules")["above limit"]
    expected: Records = []
    rules = _data("rules")
    for payment in _data("payments"):
        valid = [
            rule["limit"]
            for rule in rules
            if rule["country"] == payment["country"] and rule["time"] <= payment["time"]
        ]
        if payment["cents"] > valid[-1]:
            expected.append({**payment, "limit": valid[-1]})
    assert _sorted(found) == _sorted(expected)
    assert len({payment["limit"] for payment in expected}) > 3, "the rules do not change"
