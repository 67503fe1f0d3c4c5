"""Ask a window for its best records while the job runs, before the window fires.

    python examples/live_top.py [--rounds N]

Each shop has bids with amounts, and a window of one hour keeps its three highest ones (`top_k`).
The window fires after an hour. Meanwhile the program asks for what the window has so far: live,
from the running tasks, and from the newest snapshot, which is consistent and somewhat older. The
same is possible over HTTP and with `penstock query`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import NamedTuple

from penstock import (
    DataStream,
    GraphError,
    JobClient,
    JobStatus,
    StoreError,
    StreamExecutionEnvironment,
    Time,
    TumblingProcessingTimeWindows,
)

SHOPS = ("books", "music", "toys")


class Bid(NamedTuple):
    """A bid in a shop."""

    shop: str
    bidder: int
    cents: int


def bid(number: int) -> Bid:
    """Return the bid with a number."""
    return Bid(SHOPS[number % 3], number % 97, 10 * number + number * 7919 % 1_009)


def best_of_the_hour(bids: DataStream[Bid]) -> DataStream[list[Bid]]:
    """Return the three highest bids of each shop and hour."""
    return (
        bids.key_by(lambda one: one.shop)
        .window(TumblingProcessingTimeWindows.of(Time.hours(1)))
        .top_k(3, by=lambda one: one.cents)
        .uid("best")
    )


def show(client: JobClient, shop: str, live: bool) -> list[Bid]:
    """Print the best bids of a shop so far, and return them."""
    answer = client.query_state("best", "window-panes", shop, live=live).result()
    # At the turn of an hour there are two windows.
    bids = [one for entry in answer.entries for one in entry.value]
    source = "live" if live else f"snapshot {answer.snapshot}, {answer.age_seconds:.1f} s old"
    print(
        f"{shop}: {', '.join(f'{one.cents / 100:.2f} by {one.bidder}' for one in bids)} ({source})"
    )
    return bids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often to ask")
    rounds = parser.parse_args().rounds
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(500)
    with tempfile.TemporaryDirectory() as folder:
        env.get_checkpoint_config().set_checkpoint_storage_dir(f"{folder}/job")
        best_of_the_hour(env.from_generator(bid, None, 2_000)).print()
        client = env.execute_async("bids")
        try:
            newest = 0
            for _ in range(rounds):
                newest = wait_for_snapshot(client, newest)
                for shop in SHOPS:
                    show(client, shop, live=True)
                show(client, SHOPS[0], live=False)
        finally:
            client.cancel().result()


def wait_for_snapshot(client: JobClient, after: int) -> int:
    """Wait until the job has a snapshot with windows after a number, and return its number."""
    while True:
        if client.get_job_status().result() is JobStatus.FAILED:
            client.get_job_execution_result().result()  # it raises the error of the job
        try:
            answer = client.query_state("best", "window-panes", limit=1).result()
            if answer.entries and answer.snapshot is not None and answer.snapshot > after:
                return answer.snapshot
        except (StoreError, GraphError):
            pass  # there is no snapshot yet, or it has no window
        time.sleep(0.1)


if __name__ == "__main__":
    main()
