"""The dataflow of Bytewax that `python -m bench connectors` compares with."""

from __future__ import annotations

import pytest

from bench.connectors import bytewax_kafka, kafka
from penstock.testing.servers.kafka import KafkaServer


def test_its_absence_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bytewax_kafka, "find_spec", lambda name: None)
    assert "pip install 'penstock[bench]'" in (bytewax_kafka.missing() or "")


# Bytewax passes a setting of consumers to a client that is none, and its modules are older.
@pytest.mark.filterwarnings("default")
def test_it_counts_what_the_job_counts(kafka_server: KafkaServer, tmp_path):
    pytest.importorskip("bytewax")
    count = 2 * kafka.KEYS
    topic = kafka._fill(kafka_server, count)
    # The function checks the counts.
    assert kafka._bytewax(kafka_server, topic, count, tmp_path / "state") > 0
