"""Report stolen cards: a thief tries a card with a small sum, and then spends a large one.

    python examples/time/fraud_rule.py [--output DIR] [--parallelism N]

The rule: a payment of 500 or more that follows within a minute a payment of less than 1, with the
same card. A timer forgets the small payment when the minute is over. Payments can be out of order
by 2 seconds; so each payment waits for its turn in the state of its card, until the watermark says
that no earlier one will come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replay import environment, options, replay, write
from simulated_data import payments

from penstock import (
    DataStream,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)

SMALL, LARGE, WITHIN = 100, 50_000, 60_000
OUT_OF_ORDERNESS = 2_000


class StolenCard(KeyedProcessFunction):
    """Emits an alert for a large payment that follows a small one."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))
        self.small = runtime_context.get_state(ValueStateDescriptor("time of the small payment"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        time = value["time"]
        self.waiting.put(time, (self.waiting.get(time) or []) + [value["cents"]])
        ctx.timer_service().register_event_time_timer(time)

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterable[dict[str, Any]]:
        small = self.small.value()
        if small is not None and timestamp >= small + WITHIN:
            self.small.clear()
            small = None
        for cents in self.waiting.get(timestamp) or []:
            if cents >= LARGE and small is not None:
                yield {"card": ctx.get_current_key(), "time": timestamp, "cents": cents}
            if cents < SMALL:
                small = timestamp
                self.small.update(small)
                ctx.timer_service().register_event_time_timer(small + WITHIN)
        self.waiting.remove(timestamp)


def alerts(stream: DataStream) -> DataStream:
    """Return the alerts for a stream of payments."""
    return stream.key_by(lambda payment: payment["card"]).process(StolenCard()).uid("stolen cards")


def main() -> None:
    given = options(__doc__)
    env = environment(given)
    stream = replay(env, "payments", payments(given.seed), OUT_OF_ORDERNESS)
    write(alerts(stream), "alerts", given)
    env.execute("fraud rule")


if __name__ == "__main__":
    main()
