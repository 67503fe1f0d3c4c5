"""Files with one message of a schema per line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from penstock import (
    BAD_MESSAGES,
    FileSink,
    FileSource,
    GraphError,
    JobError,
    Row,
    StreamExecutionEnvironment,
    Types,
)
from penstock.connectors.formats import (
    Avro,
    ByteArraySchema,
    CsvRowDeserializationSchema,
    DeserializationSchema,
    Json,
    JsonRowSerializationSchema,
    MessageLines,
)
from penstock.testing.connectors import SourceConformance


@dataclass
class Age:
    name: str
    age: int


LINES = b'{"name": "ann", "age": 31}\n\n{"name": "bob"}\r\n\xff\n{"name": "eve", "age": 7}\n'


def test_lines_are_typed_and_bad_ones_go_to_the_side_output(tmp_path: Path) -> None:
    path = tmp_path / "ages.jsonl"
    path.write_bytes(LINES * 20)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    format = MessageLines(Json(Age, on_error="side_output"))
    ages = env.from_source(FileSource(path, format, split_bytes=100))
    bad = ages.get_side_output(BAD_MESSAGES).map(lambda one: one.message)
    found = list(ages.map(lambda age: age.name.encode()).union(bad).execute_and_collect())
    assert sorted(found) == sorted([b"ann", b'{"name": "bob"}', b"\xff", b"eve"] * 20)


def test_a_bad_line_names_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "ages.jsonl"
    path.write_bytes(LINES)
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(JobError) as caught:
        list(env.from_source(FileSource(path, MessageLines(Json(Age)))).execute_and_collect())
    text = str(caught.value)
    assert f"{path}, byte 28: a line is not valid Json: Object missing required field `age`" in text
    assert "Json(on_error='skip') skips and counts such lines" in text


def test_what_a_sink_writes_a_source_reads(tmp_path: Path) -> None:
    ages = [Age("ann", 31), Age("bäb", 7)]
    format = MessageLines(Json(Age))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(ages).sink_to(FileSink(tmp_path / "out", format))
    env.execute()
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    assert part.read_text() == '{"name":"ann","age":31}\n{"name":"bäb","age":7}\n'
    env = StreamExecutionEnvironment.get_execution_environment()
    assert list(env.from_source(FileSource(part, format)).execute_and_collect()) == ages


def test_a_file_has_its_own_encoding(tmp_path: Path) -> None:
    path = tmp_path / "ages"
    path.write_text('{"name": "bäb", "age": 7}\n', encoding="latin-1")
    format = MessageLines(Json(Age), encoding="latin-1")
    env = StreamExecutionEnvironment.get_execution_environment()
    found = list(env.from_source(FileSource(path, format)).execute_and_collect())
    assert found == [Age("bäb", 7)]


def test_lines_of_a_schema_with_any_number_of_records(tmp_path: Path) -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    schema = CsvRowDeserializationSchema(kind, allow_comments=True, on_error="skip")
    path = tmp_path / "rows.csv"
    path.write_text("1,a\n# no row\nx,y\n2,b\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    found = list(env.from_source(FileSource(path, MessageLines(schema))).execute_and_collect())
    assert found == [Row(a=1, b="a"), Row(a=2, b="b")]


def test_wrong_schemas_are_refused() -> None:
    with pytest.raises(GraphError, match="MessageLines takes a schema"):
        MessageLines(Json)  # type: ignore[arg-type]
    row = Types.ROW_NAMED(["a"], [Types.INT()])
    with pytest.raises(GraphError, match="cannot read: it is no DeserializationSchema"):
        MessageLines(JsonRowSerializationSchema(row)).parse(["{}"])

    class OnlyReads(DeserializationSchema[Any]):
        def deserialize(self, messages: Any) -> Any:
            return messages

    with pytest.raises(GraphError, match="OnlyReads cannot write"):
        MessageLines(OnlyReads()).render([1])
    encode = MessageLines(ByteArraySchema()).create_encoder()
    with pytest.raises(JobError, match="a record contains a line end"):
        encode([b"a\nb"])
    with pytest.raises(JobError, match="cannot write a record"):
        MessageLines(Json()).create_encoder()([object()])
    with pytest.raises(JobError, match="cannot write a record"):
        MessageLines(Avro("bytes")).create_encoder()([b"\xff"])


def test_an_opened_format_can_be_sent() -> None:
    format = MessageLines(Json(Age))
    assert format.parse(['{"name": "ann", "age": 31}', " "]) == [Age("ann", 31)]
    copy = cloudpickle.loads(cloudpickle.dumps(format))
    assert copy == format or copy.schema.type is Age
    assert copy.render([Age("ann", 31)]) == ['{"name":"ann","age":31}']


class TestMessageLines(SourceConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "ages"
        self.path.write_bytes(LINES * 5)

    def create_source(self) -> Any:
        format = MessageLines(Json(Age, on_error="skip"))
        return FileSource(self.path, format, split_bytes=60)

    def expected(self) -> Any:
        return [Age("ann", 31), Age("eve", 7)] * 5
