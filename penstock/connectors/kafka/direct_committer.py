"""Commit the transactions that writers have left open at a barrier (`direct_writer.py`).

The JobManager asks the brokers for the state of each transaction. An open one is committed, and a
committed one was committed by an earlier attempt. In any other state its records are lost, and the
job ends with a message that has their number. Nothing is skipped silently.

Before each attempt, the open transactions of earlier attempts are aborted. They belong to no
snapshot. Until then, they hold back readers of committed records.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.connectors.kafka.client import KafkaConnection
from penstock.connectors.kafka.topic_client import TopicClient
from penstock.connectors.kafka.transaction_client import Transaction, TransactionClient
from penstock.connectors.staged_sink import SinkPlace
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer, CommitterContext

logger = logging.getLogger("penstock.kafka")

#: The time for which a commit is tried again before the job restarts, and the time between tries,
#: in seconds.
_COMMIT_SECONDS, _PAUSE_SECONDS = 30.0, 0.2
#: The shortest and the longest time between two searches for transactions of writers that were
#: thought dead, in seconds. Most of them end within seconds after their JobManager.
_SWEEP_SECONDS = (1.0, 60.0)
#: The states of a transaction that is committed, or will be for certain.
_COMMITTED = ("CompleteCommit", "PrepareCommit")


@dataclass(frozen=True)
class OpenTransaction:
    """Identifies a transaction of a snapshot. This is the payload of a committable.

    Arguments:
        name: the transactional id.
        producer_id: the id of the producer.
        epoch: the epoch of the producer.
        records: the number of records.
    """

    name: str
    producer_id: int
    epoch: int
    records: int

    @classmethod
    def of(cls, item: Committable) -> OpenTransaction:
        """Return the transaction of a committable.

        Raises:
            JobError: if it is not of this sink.
        """
        match item.payload:
            case {
                "transaction": str(name),
                "producer": int(producer_id),
                "epoch": int(epoch),
                "records": int(records),
            }:
                return cls(name, producer_id, epoch, records)
        raise JobError(
            f"snapshot {item.snapshot} holds output that was not written in the mode 'direct': "
            f"{str(item.payload)[:100]!r}. If the sink had the mode 'staged', resume the job with "
            f"it, and change the mode after a stop of the job. Nothing was published",
            operator=f"sink {item.uid}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def transactional_prefix(prefix: str, place: SinkPlace) -> str:
    """Return the beginning of all transactional ids of a place.

    Arguments:
        prefix: the prefix of the sink.
        place: the lineage and the uid of the sink.
    """
    return f"{prefix}/{place.key}/"


class DirectCommitter(Committer):
    """Commits transactions that are open at a barrier.

    Arguments:
        connection: the cluster.
        prefix: the prefix of the sink's transactional ids.
        topic: the topic, which must exist; None if it depends on the record.
    """

    def __init__(self, connection: KafkaConnection, prefix: str, topic: str | None) -> None:
        self._connection, self._prefix, self._topic = connection, prefix, topic
        self._context = CommitterContext("", "")
        self._client = TransactionClient(connection)
        #: The number of the running attempt, the time of the next search, and the time between.
        self._attempt, self._next_sweep, self._pause = 0, 0.0, 0.0

    def open(self, context: CommitterContext) -> None:
        """Set the run."""
        self._context = context

    def commit(self, committables: list[Committable]) -> None:
        """Commit the transactions that are open.

        Raises:
            JobError: if a transaction is neither open nor committed. The others are committed.
        """
        lost = self._settle([(item, OpenTransaction.of(item)) for item in committables])
        accepted = self._context.marker
        fatal = []
        for item, transaction, found in lost:
            what = _describe(item, transaction, found)
            if accepted is not None and item.snapshot <= accepted:
                logger.warning("sink %s: %s. --sink-marker accepts it", self._context.name, what)
            else:
                fatal.append((item, transaction, what))
        if fatal:
            raise self._loss(fatal)
        # The parent of a fork may be a job that runs, with attempts of its own.
        own = [item for item in committables if item.lineage == self._context.lineage]
        if own and time.monotonic() >= self._next_sweep:
            self._pause = min(2 * self._pause, _SWEEP_SECONDS[1])
            self._next_sweep = time.monotonic() + self._pause
            self._sweep(own[-1].lineage, own[-1].uid)

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Abort the open transactions of earlier attempts, and fence their producers.

        Raises:
            JobError: if the brokers cannot be reached, or the topic does not exist.
        """
        if self._topic is not None:
            topics = TopicClient(self._connection, None)
            try:
                topics.topics([self._topic], None)
            finally:
                topics.close()
        self._attempt, self._pause = before_attempt, _SWEEP_SECONDS[0]
        self._next_sweep = time.monotonic() + self._pause
        return self._abort_before(lineage, uid, before_attempt)

    def finish(self, lineage: str, uid: str) -> None:
        """Abort the transactions that writers of earlier attempts have begun meanwhile."""
        self._sweep(lineage, uid)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _settle(
        self, items: Sequence[tuple[Committable, OpenTransaction]]
    ) -> list[tuple[Committable, OpenTransaction, Transaction | None]]:
        """Commit open transactions, in order. Return those that are lost or unknown.

        A request without an answer is not repeated blindly: the state is asked for again.
        """
        left, lost = deque(items), []
        deadline = time.monotonic() + _COMMIT_SECONDS
        while left:
            try:
                states = self._client.describe([one.name for _, one in left])
                while left:
                    item, one = left[0]
                    found = states.get(one.name)
                    if found is not None and _is_open(one, found):
                        self._client.commit(one.name, one.producer_id, one.epoch)
                    elif found is None or found.state not in _COMMITTED:
                        lost.append((item, one, found))
                    left.popleft()
            except JobError as error:
                final = error.recoverability is Recoverability.NON_RECOVERABLE
                if final or time.monotonic() > deadline:
                    raise
                logger.info("sink %s: %s; asking again", self._context.name, error)
                time.sleep(_PAUSE_SECONDS)
        return lost

    def _loss(self, lost: Sequence[tuple[Committable, OpenTransaction, str]]) -> JobError:
        """Return the error for transactions that cannot be committed."""
        newest = max(item.snapshot for item, _, _ in lost)
        oldest = min(item.snapshot for item, _, _ in lost)
        records = sum(one.records for _, one, _ in lost)
        shown = "; ".join(what for _, _, what in lost[:3])
        more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
        return JobError(
            f"{records:,} records of {len(lost)} transactions cannot be committed: {shown}{more}. "
            f"The job has no copy of them. All other output of its snapshots is published. Look at "
            f"the newest output of the topic. To go on without these records, resume with "
            f"--sink-marker UID={newest}; the uid is {lost[0][0].uid!r}. To write them again, with "
            f"all output behind them, use --resume NUMBER --fork with a snapshot before {oldest}. "
            f"Raise transaction.timeout.ms of the sink, or use exactly_once_mode='staged', which "
            f"does not depend on it",
            operator=f"sink {self._context.name}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    def _abort_before(self, lineage: str, uid: str, attempt: int) -> int:
        prefix = transactional_prefix(self._prefix, SinkPlace(lineage, uid, self._context.name))
        aborted = 0
        for name in self._client.open_ids(prefix):
            number = name.removeprefix(prefix).partition("-")[0]
            if number.isdecimal() and int(number) < attempt:
                self._client.abort(name)
                aborted += 1
        return aborted

    def _sweep(self, lineage: str, uid: str) -> None:
        """Abort transactions of earlier attempts, and only log errors.

        A writer may go on for some time after its JobManager was killed, or wake up after it was
        stopped. Nobody would commit its transaction, and readers would wait until it expires.
        """
        try:
            aborted = self._abort_before(lineage, uid, self._attempt)
        except JobError as error:
            logger.info("sink %s: open transactions are not found: %s", self._context.name, error)
        else:
            if aborted:
                logger.info(
                    "sink %s: %d transactions of writers of an earlier attempt were aborted",
                    self._context.name,
                    aborted,
                )


def _is_open(transaction: OpenTransaction, found: Transaction) -> bool:
    same = (found.producer_id, found.epoch) == (transaction.producer_id, transaction.epoch)
    return found.state == "Ongoing" and same


def _describe(item: Committable, one: OpenTransaction, found: Transaction | None) -> str:
    """Describe what happened to a transaction that is neither open nor committed."""
    what = f"{one.records:,} records of snapshot {item.snapshot} (subtask {item.subtask})"
    if found is None:
        return (
            f"it is unknown whether {what} are committed, because the brokers have forgotten "
            f"transaction {one.name} (transactional.id.expiration.ms, 7 days by default)"
        )
    return (
        f"{what} are lost, because the brokers have aborted transaction {one.name} (state "
        f"{found.state}): the job was down for longer than transaction.timeout.ms "
        f"({found.timeout_seconds:g} seconds), or another run of the job has replaced this one"
    )
