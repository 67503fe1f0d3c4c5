"""The examples of asynchronous requests: workers are killed, and each record has one result."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.servers.postgres import PostgresServer
from tests.processes.harness import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_orders_are_enriched_once_by_an_http_service():
    first, second, last = run("async_enrichment.py", "--orders", "4000", "--capacity", "20")
    assert re.match(r"async enrichment: 4,000 orders in [\d.]+ s · [\d,]+ requests/s · ", first)
    assert re.match(r"worker \d+ killed · restarts [1-9]", second)
    assert last == "lost 0 · doubled 0"


def test_texts_have_their_embeddings_once():
    pytest.importorskip("wordllama")
    first, second, last = run("async_embeddings.py", "--messages", "2000", "--kills", "2")
    assert re.match(r"embeddings: 2,000 messages in [\d.]+ s · \d+ calls of [\d.]+ messages", first)
    assert re.match(r"workers killed 2 · restarts [1-9]", second)
    assert last == "lost 0 · doubled 0"


@pytest.mark.skipif(PostgresServer.missing() is not None, reason=str(PostgresServer.missing()))
def test_orders_have_the_names_of_their_customers_once():
    first, second, last = run("async_postgres_lookup.py", "--orders", "3000", "--kills", "2")
    assert re.match(r"lookup: 3,000 orders in [\d.]+ s · [\d,]+ queries for [\d,]+ orders", first)
    assert re.match(r"workers killed 2 · restarts [1-9]", second)
    assert last == "lost 0 · doubled 0"
