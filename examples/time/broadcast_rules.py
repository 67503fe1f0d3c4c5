"""Check payments against rules that change while the job runs.

    python examples/time/broadcast_rules.py [--output DIR] [--parallelism N]

A rule is a limit for the payments of one country, from a given time on. Rules are broadcast: each
subtask keeps all of them. A payment waits in the state of its card until the watermark has passed
it. The watermark is the minimum of both streams, so that all rules of that time are known by then.
The results do not depend on which stream is faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replay import environment, options, replay, write
from simulated_data import payments, rules

from penstock import (
    DataStream,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
)

RULES = MapStateDescriptor("rules")
OUT_OF_ORDERNESS = 2_000


class AboveLimit(KeyedBroadcastProcessFunction):
    """Emits the payments above the limit that was valid at their time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))

    def process_element(self, value: Any, ctx: Any) -> None:
        time = value["time"]
        self.waiting.put(time, (self.waiting.get(time) or []) + [value])
        ctx.timer_service().register_event_time_timer(time)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        known = ctx.get_broadcast_state(RULES)
        limits = known.get(value["country"]) or []
        known.put(value["country"], sorted([*limits, (value["time"], value["limit"])]))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[dict[str, Any]]:
        known = ctx.get_broadcast_state(RULES)
        for payment in self.waiting.get(timestamp) or []:
            limits = known.get(payment["country"]) or []
            valid = [limit for time, limit in limits if time <= timestamp]
            if valid and payment["cents"] > valid[-1]:
                yield {**payment, "limit": valid[-1]}
        self.waiting.remove(timestamp)


def above_limit(stream: DataStream, changes: DataStream) -> DataStream:
    """Return the payments above their limits."""
    keyed = stream.key_by(lambda payment: payment["card"])
    return keyed.connect(changes.broadcast(RULES)).process(AboveLimit()).uid("above limit")


def main() -> None:
    given = options(__doc__)
    env = environment(given)
    stream = replay(env, "payments", payments(given.seed), OUT_OF_ORDERNESS)
    changes = replay(env, "rules", rules(given.seed), 0)
    write(above_limit(stream, changes), "above limit", given)
    env.execute("broadcast rules")


if __name__ == "__main__":
    main()
