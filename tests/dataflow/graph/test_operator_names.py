"""Operators of one name are told apart in tables and reports."""

from __future__ import annotations

from typing import Any

from penstock import FileSink, KeyedProcessFunction, StreamExecutionEnvironment, TextLines
from penstock.dataflow.graph.compile import compile_graph


class Alerts(KeyedProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Any:
        yield value


class Rates(Alerts):
    pass


def shown(*folders: str, functions: tuple[KeyedProcessFunction, ...]) -> list[str]:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([1]).key_by(str)
    for function in functions:
        lines = keyed.process(function).map(str)
        for folder in folders:
            lines.sink_to(FileSink(folder, TextLines()))
    return list(compile_graph(env._graph, env.config).shown_names.values())


def test_repeated_names_have_the_class_or_the_folder() -> None:
    names = shown("/data/alerts", "/" + "x" * 50, functions=(Alerts(), Rates()))
    assert names[:3] == ["Source: Collection", "Keyed Process (Alerts)", "Map"]
    assert names[3:5] == ["Sink: FileSink (/data/alerts)", f"Sink: FileSink (…{'x' * 39})"]
    assert names[5] == "Keyed Process (Rates)"


def test_a_name_of_its_own_stays_as_it_is() -> None:
    names = ["Source: Collection", "Keyed Process", "Map", "Sink: FileSink"]
    assert shown("/data", functions=(Alerts(),)) == names
