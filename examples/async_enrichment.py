"""Enriches orders with the names of their customers, which an HTTP service knows.

    python examples/async_enrichment.py
    python examples/async_enrichment.py --orders 20000 --capacity 200 --parallelism 2

The program starts the HTTP service itself, in a thread. The job asks it for each order, with many
requests in flight, and writes the enriched orders to files. Meanwhile a worker gets SIGKILL. The
job goes back to its newest snapshot, sends the requests in flight again, and goes on. In the end
each order must be in the committed files once.

Needs aiohttp (`pip install aiohttp`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    FileSink,
    GeneratorSource,
    JsonLines,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
)
from penstock.dataflow.program import current_options, run_options

CUSTOMERS = ["Ada", "Barbara", "Edsger", "Frances", "Grace", "Leslie", "Mary"]


class CustomerService:
    """An HTTP service that answers `/customer/7` after 5 to 25 ms."""

    def __init__(self) -> None:
        self.requests = 0
        self.url = ""
        self._started = threading.Event()

    def start(self) -> None:
        """Start the service in a thread, and wait until it listens."""
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._started.wait()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/customer/{id}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._started.set()
        await asyncio.Event().wait()

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        await asyncio.sleep(random.uniform(0.005, 0.025))
        customer = int(request.match_info["id"])
        return web.json_response({"name": CUSTOMERS[customer % len(CUSTOMERS)]})


class Enrich(AsyncFunction):
    """Asks the service for the name of the customer of an order.

    Arguments:
        url: the address of the service.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, runtime_context: Any) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        self.session = aiohttp.ClientSession(self.url, connector=connector)

    async def async_invoke(self, value: tuple[int, int]) -> list[Any]:
        order, customer = value
        async with self.session.get(f"/customer/{customer}") as response:
            response.raise_for_status()
            return [(order, (await response.json())["name"])]

    async def close(self) -> None:
        await self.session.close()


class Watch:
    """Follows the events of the job, and kills a worker at its third snapshot."""

    def __init__(self) -> None:
        self.killed: int | None = None
        self.restarts = 0
        self._workers: list[int] = []
        self._snapshots = 0

    def take(self, event: dict[str, Any]) -> None:
        """Take an event of the job."""
        match event["event"]:
            case "workers":
                self._workers = event["pids"]
            case "restarted":
                self.restarts += 1
            case "snapshot":
                self._snapshots += 1
                if self._snapshots == 3:
                    with suppress(ProcessLookupError):  # the job may have ended
                        os.kill(self._workers[-1], signal.SIGKILL)
                        self.killed = self._workers[-1]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take the events of the job that is executed in this block."""
        with run_options(replace(current_options(), progress=self.take)):
            yield


def enrich(given: argparse.Namespace, url: str, output: Path) -> StreamExecutionEnvironment:
    """Return the program."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(given.parallelism)
    env.enable_checkpointing(50)  # milliseconds
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    source = GeneratorSource(lambda order: (order, order * 7919 % 1000), given.orders)
    orders = env.from_source(source, None, "orders")
    strategy = AsyncRetryStrategy.exponential_backoff(
        5, 20, 1000, 2, exception_predicate=lambda error: isinstance(error, aiohttp.ClientError)
    )
    enriched = AsyncDataStream.unordered_wait_with_retry(
        orders.rebalance(), Enrich(url), Time.seconds(60), strategy, given.capacity
    )
    enriched.name("enrich").sink_to(FileSink(output, JsonLines()))
    return env


def main() -> int:
    """Run the service and the job, and compare what was committed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=8_000)
    parser.add_argument("--capacity", type=int, default=50, help="requests in flight per subtask")
    parser.add_argument("--parallelism", "-p", type=int, default=2)
    given = parser.parse_args()
    service, watch = CustomerService(), Watch()
    service.start()
    with tempfile.TemporaryDirectory(prefix="penstock-example-") as folder:
        output = Path(folder) / "orders"
        began = time.monotonic()
        with watch.watching():
            enrich(given, service.url, output).execute("async enrichment")
        seconds = time.monotonic() - began
        files = sorted(output.glob("part-*"))
        found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    names = {
        order: CUSTOMERS[order * 7919 % 1000 % len(CUSTOMERS)] for order in range(given.orders)
    }
    seen = Counter((order, name) for order, name in found)
    lost = len(names.items() - seen.keys())
    doubled = seen.total() - len(names.items() & seen.keys())
    print(
        f"async enrichment: {given.orders:,} orders in {seconds:.1f} s · "
        f"{service.requests / seconds:,.0f} requests/s · "
        f"up to {given.capacity * given.parallelism} in flight"
    )
    if watch.killed is None:
        print("nobody was killed: the job ended too early; use more --orders")
        return 1
    print(
        f"worker {watch.killed} killed · restarts {watch.restarts} · "
        f"requests sent twice {service.requests - given.orders:,}"
    )
    print(f"lost {lost} · doubled {doubled}")
    return 1 if lost or doubled or not watch.restarts else 0


if __name__ == "__main__":
    sys.exit(main())
