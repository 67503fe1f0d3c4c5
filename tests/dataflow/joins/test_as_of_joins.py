"""As-of joins as programs write them, and wrong programs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    DataStream,
    GraphError,
    JoinFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)

ORDERS = [("usd", 10, 100), ("eur", 15, 50), ("usd", 30, 10), ("chf", 40, 1)]
RATES = [("usd", 5, 2), ("usd", 30, 3), ("eur", 20, 4)]


def timed(env: StreamExecutionEnvironment, records: list[Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: record[1]
    )
    return env.from_collection(records).assign_timestamps_and_watermarks(strategy)


def streams() -> tuple[Any, Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    orders, rates = timed(env, ORDERS), timed(env, RATES)
    return orders.key_by(lambda order: order[0]), rates.key_by(lambda rate: rate[0])


def run(stream: DataStream) -> list[Any]:
    with stream.execute_and_collect(in_process=True) as found:
        return sorted(found)


class Product(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return first[0], first[2] * second[2]


def test_each_record_meets_the_version_of_its_time() -> None:
    orders, rates = streams()
    assert run(orders.as_of_join(rates)) == [(ORDERS[0], RATES[0]), (ORDERS[2], RATES[1])]
    orders, rates = streams()
    assert run(orders.as_of_join(rates, function=Product())) == [("usd", 30), ("usd", 200)]
    orders, rates = streams()
    left = orders.as_of_join(rates, how="left", function=lambda o, r: (o[0], o[1], r and r[2]))
    assert run(left) == [("chf", 40, None), ("eur", 15, None), ("usd", 10, 2), ("usd", 30, 3)]


def test_wrong_programs_are_refused() -> None:
    orders, rates = streams()
    env = orders.get_execution_environment()
    for options, message in (
        ({"how": "right"}, "how is 'inner' or 'left'"),
        ({"function": lambda order: order}, "calls its function as"),
        ({"late_tag": "late"}, r"write OutputTag\('late'\)"),
    ):
        with pytest.raises(GraphError, match=message):
            orders.as_of_join(rates, **options)
    with pytest.raises(GraphError, match="as_of_join takes a keyed stream"):
        orders.as_of_join(timed(env, RATES))
    with pytest.raises(GraphError, match="different types, STRING and INT"):
        orders.key_by(0, key_type=Types.STRING()).as_of_join(rates.key_by(1, key_type=Types.INT()))
    plain = env.from_collection(RATES).key_by(lambda rate: rate[0])
    with pytest.raises(GraphError, match="records of its second stream timestamps"):
        run(orders.as_of_join(plain))
