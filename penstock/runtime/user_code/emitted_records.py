"""Check the types of the first records that an operator emits.

A record that cannot be encoded works as long as it stays within an operator chain. If it leaves its
chain, it is refused even if the next task is in the same process. Otherwise the program would fail
as soon as it runs with another parallelism, or when a snapshot contains the record.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.runtime.user_code.errors import rendered

__all__ = ["check_first_records"]

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
