"""Check the records that an operator emits.

If the program declares the type of the records, `converted_batch` checks each of them.
`check_first_records` checks whether the first ones can be encoded. A record that cannot be encoded
works as long as it stays within an operator chain. If it leaves its chain, it is refused even if
the next task is in the same process. Otherwise the program would fail as soon as it runs with
another parallelism, or when a snapshot contains the record.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.types import TypeInformation
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import rendered

_LOGGER = logging.getLogger("penstock")


def check_first_records(
    records: Sequence[Any],
    operator: str,
    why_unsupported: Callable[[Any], str | None],
    *,
    leave_chain: bool,
) -> None:
    """Refuse coroutines and values that cannot leave their chain, and warn of such values.

    Arguments:
        records: the first batch of records that an operator emits.
        operator: the name of the operator.
        why_unsupported: returns why a value cannot be encoded, or None if it can.
        leave_chain: whether the records go to another task.

    Raises:
        JobError: if a record is a coroutine or an asynchronous generator, or if it goes to another
            task and cannot be encoded.
    """
    examples = {type(record): record for record in records}
    for kind, example in examples.items():
        if issubclass(kind, Coroutine | AsyncGenerator):
            for record in records:
                if isinstance(record, Coroutine):
                    record.close()  # Python would also warn that it was never awaited.
            raise JobError(
                f"operator {operator!r} emitted a {kind.__name__.replace('_', ' ')} "
                f"({getattr(example, '__qualname__', kind.__name__)}) instead of a record, because "
                f"a function of the program called an async function. The engine does not await "
                f"it: use AsyncDataStream.unordered_wait or ordered_wait",
                operator=operator,
            )
        why = why_unsupported(example)
        if why is not None and leave_chain:
            raise JobError(why, operator=operator, record=rendered(example))
        if why is not None:
            _LOGGER.warning(
                "operator %r emits values that no other task can receive: %s. The job fails as "
                "soon as they leave their operator chain, for example with another parallelism",
                operator,
                why,
            )


def converted_batch(batch: RecordBatch, declared: TypeInformation, name: str) -> RecordBatch:
    """Return a batch whose records have the declared type.

    Arguments:
        batch: the records that an operator emits.
        declared: the type that the program declares for them.
        name: the name of the operator.

    Raises:
        JobError: if a record is not of this type.
    """
    rows = batch.rows()
    try:
        converted = declared.converted_all(rows)
    except ValueError:
        raise _wrong_record(rows, declared, name) from None
    return batch if converted is rows else batch.with_rows(list(converted))


def _wrong_record(rows: list[object], declared: TypeInformation, name: str) -> JobError:
    for record in rows:
        try:
            declared.converted(record)
        except ValueError as error:
            return JobError(
                f"operator {name!r} declares that it emits {declared}, and {error}; return such "
                f"records, or leave out the type",
                operator=name,
                record=rendered(record),
            )
    raise AssertionError("a batch is wrong, but none of its records is")
