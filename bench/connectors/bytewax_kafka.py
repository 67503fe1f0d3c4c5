"""Count records of Kafka with Bytewax's own connector, for `kafka`.

The dataflow has one worker, and counts by key in keyed state, of which it takes a snapshot each
second, as the job of Penstock does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["count_by_user", "missing"]


def missing() -> str | None:
    """Return what to do if Bytewax is not installed; None if it is."""
    if find_spec("bytewax") is not None:
        return None
    return (
        "Bytewax is not installed, so its figures are left out: pip install 'penstock[bench]' (it "
        "has wheels up to Python 3.12)"
    )


def count_by_user(
    address: str,
    topic: str,
    most: int,
    decode: Callable[[bytes], dict[str, Any]],
    folder: Path,
) -> tuple[float, dict[str, int]]:
    """Return the seconds from the first record to the end of the dataflow, and the counts.

    Arguments:
        address: the address of the broker.
        topic: the name of the topic.
        most: the count at which a user has no more records.
        decode: decodes the value of a message.
        folder: an empty folder for the snapshots.
    """
    import bytewax.operators as op
    from bytewax.connectors.kafka import KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import TestingSink, run_main

    begins: list[float] = []
    results: list[tuple[str, int]] = []

    def user_of(message: Any) -> tuple[str, int]:
        if not begins:
            begins.append(time.perf_counter())
        return decode(message.value)["user"], 1

    def add(state: int | None, one: int) -> tuple[int, int]:
        total = (state or 0) + one
        return total, total

    flow = Dataflow("count")
    source = KafkaSource(
        [address], [topic], tail=False, add_config={"isolation.level": "read_committed"}
    )
    users = op.map("decode", op.input("topic", flow, source), user_of)
    counted = op.stateful_map("count", users, add)
    # Only the last count of each user goes on.
    last = op.filter("last", counted, lambda pair: pair[1] == most)
    op.output("out", last, TestingSink(results))
    folder.mkdir(parents=True)
    init_db_dir(folder, 1)
    run_main(flow, epoch_interval=timedelta(seconds=1), recovery_config=RecoveryConfig(folder))
    return time.perf_counter() - begins[0], dict(results)
