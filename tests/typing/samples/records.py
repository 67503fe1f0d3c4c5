"""The records of the samples."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import DataStream, StreamExecutionEnvironment


@dataclass(frozen=True)
class Order:
    customer: str
    amount: int
    time: int


@dataclass(frozen=True)
class Customer:
    id: str
    name: str


def orders() -> DataStream[Order]:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([Order("a", 1, 0)])


def customers() -> DataStream[Customer]:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([Customer("a", "Ann")])
