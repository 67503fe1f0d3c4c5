"""Sinks in the mode `direct` whose JobManager dies at a commit, and transactions that expire."""

from __future__ import annotations

import os
import signal
from typing import Any

from penstock.connectors.kafka import KafkaSink
from penstock.connectors.kafka.client import KafkaConnection
from penstock.connectors.kafka.transaction_client import TransactionClient
from penstock.dataflow.sink import Committer
from penstock.testing.servers.kafka import KafkaServer


def expire_all(server: KafkaServer, prefix: str) -> int:
    """Do what brokers do after `transaction.timeout.ms`, and the test server never does."""
    transactions = TransactionClient(KafkaConnection(server.address, {}))
    names = transactions.open_ids(prefix)
    for name in names:
        transactions.abort(name)
    transactions.close()
    return len(names)


class DyingSink(KafkaSink[Any]):
    """Kills the JobManager at a commit of a transaction.

    Arguments:
        moment: whether it dies "before" the commit or "after" it.
        at: the number of the commit, from 1.
        arguments, named: those of a `KafkaSink`.
    """

    def __init__(self, moment: str, at: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.moment, self.at = moment, at

    def create_committer(self) -> Committer | None:  # type: ignore[override]
        committer: Any = super().create_committer()
        committer._client = DyingClient(self.connection, self.moment, self.at)
        return committer


class DyingClient(TransactionClient):
    def __init__(self, connection: KafkaConnection, moment: str, at: int) -> None:
        super().__init__(connection)
        self.moment, self.left = moment, at

    def commit(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        self.left -= 1
        if self.left == 0 and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(transactional_id, producer_id, epoch)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
