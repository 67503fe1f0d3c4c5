"""Remove repeated messages: a phone that gets no answer sends its message again.

    python examples/time/deduplication.py [--output DIR] [--parallelism N]

Each message has an id. The filter remembers an id for one hour after it came last. So its state
does not grow for ever: a phone does not repeat a message for longer than that.
"""

from __future__ import annotations

from typing import Any

from replay import environment, options, write
from simulated_data import phone_messages

from penstock import (
    DataStream,
    FilterFunction,
    RuntimeContext,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)


class FirstOnly(FilterFunction):
    """Keeps the first record of each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        seen = ValueStateDescriptor("seen")
        seen.enable_time_to_live(
            StateTtlConfig.new_builder(Time.hours(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .cleanup_incrementally(10, False)
            .build()
        )
        self.seen = runtime_context.get_state(seen)

    def filter(self, value: Any) -> bool:
        if self.seen.value():
            return False
        self.seen.update(True)
        return True


def deduplicated(messages: DataStream) -> DataStream:
    """Return the first of each message."""
    return messages.key_by(lambda message: message["id"]).filter(FirstOnly()).uid("first only")


def main() -> None:
    given = options(__doc__)
    env = environment(given)
    messages = env.from_collection(phone_messages(given.seed)).uid("messages")
    write(deduplicated(messages), "messages", given)
    env.execute("deduplication")


if __name__ == "__main__":
    main()
