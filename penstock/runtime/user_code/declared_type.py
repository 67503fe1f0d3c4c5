"""Check the records of an operator whose program declares their type."""

from __future__ import annotations

from penstock.dataflow.errors import JobError
from penstock.dataflow.types import TypeInformation
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import rendered

__all__ = ["converted_batch"]


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
        raise _error(rows, declared, name) from None
    return batch if converted is rows else batch.with_rows(list(converted))


def _error(rows: list[object], declared: TypeInformation, name: str) -> JobError:
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
