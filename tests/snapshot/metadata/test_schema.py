"""Record classes that change between two runs: what is mapped by name, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, make_dataclass, replace
from enum import Enum, Flag
from pathlib import Path
from typing import (  # noqa: UP035
    Annotated,
    Any,
    Final,
    List,
    Literal,
    NamedTuple,
    Optional,
    TypeVar,
    Union,
)

import pytest
import trio

from penstock import JobConfig, PenstockError, StreamExecutionEnvironment
from penstock.connectors import GeneratorSource
from penstock.dataflow.errors import GraphError, ProtocolError
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.state import ValueStateDescriptor
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_serializers import UnsupportedTypeError
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.saved.state_parts import find_state, read_part
from penstock.snapshot.coordination.compatibility import Verdict
from penstock.snapshot.coordination.schema_compatibility import compare_schemas
from penstock.snapshot.metadata.annotations import includes, text_of
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.testing.simulation.machine import Machine
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import program, run_program
from tests.snapshot.metadata.test_manifest_format import GOLDEN_2

T = TypeVar("T")


def version(*fields: Any, name: str = "Order", **options: Any) -> Any:
    """A version of the dataclass `Order`: each field is (name, type) or (name, type, default)."""
    made = [
        (each[0], each[1], field(**each[2])) if isinstance(each[-1], dict) else each
        for each in fields
    ]
    kind = make_dataclass(name, made, **options)
    kind.__module__ = "shop"
    return kind


def schemas(*kinds: type) -> list[RecordSchema]:
    return TypeRegistry(kinds).schemas()


# --- annotations


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        ("int", "int"),
        (None, "None"),
        (type(None), "None"),
        (Optional[int], "int | None"),  # noqa: UP045
        ("t.Optional[int]", "int | None"),
        ("Union[None, str, int]", "int | str | None"),
        (Union[int, "str", None], "int | str | None"),
        (int | None, "int | None"),
        ("Optional[Union[int, None]]", "int | None"),
        (List[int], "list[int]"),  # noqa: UP006
        ("typing.Dict[str, 'Order']", "dict[str, Order]"),
        (dict[str, "Path"], "dict[str, Path]"),
        (Path, "Path"),
        ("pathlib.Path", "Path"),
        (list[Path], "list[Path]"),
        (Annotated[int, object()], "int"),
        ("Annotated[int, 'price']", "int"),
        (Final[int], "int"),
        (Literal["b", "a"], "Literal['a', 'b']"),
        ("Literal['a', 'b']", "Literal['a', 'b']"),
        (Callable[[int], str], "Callable[[int], str]"),
        ("tuple[int, ...]", "tuple[int, ...]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (list[T], "list[T]"),
        (object, "Any"),
        (Any, "Any"),
        ("no type at all", "Any"),
    ],
)
def test_spellings_of_one_type_have_one_text(annotation: Any, text: str) -> None:
    assert text_of(annotation) == text


def test_a_class_within_a_function_is_known_by_its_name() -> None:
    class Local:
        pass

    assert text_of(Local) == text_of(f"{__name__}.Local") == "Local"
    assert text_of(list[Local]) == "list[Local]"


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ("int", "int", True),
        ("int", "int | None", True),
        ("int | None", "int", False),
        ("int", "float", True),
        ("float", "int", False),
        ("int", "str", False),
        ("int", "Any", True),
        ("Any", "int", True),
        ("dict", "dict[str, int]", True),
        ("list[int]", "list[int | None]", True),
        ("list[int]", "list[str]", False),
        ("tuple[int, int]", "tuple[int, int, int]", False),
        ("list[int] | None", "list[float] | str | None", True),
        ("1", "2", False),
    ],
)
def test_a_type_may_get_wider(old: str, new: str, fits: bool) -> None:
    assert includes(new, old) is fits


# --- comparing


def differences(old: Any, new: Any) -> list[tuple[Verdict, str]]:
    found = compare_schemas(schemas(old), schemas(new))
    assert all(item.uid == TypeRegistry([new]).names()[0] for item in found)
    return [(item.verdict, item.reason) for item in found]


OLD = version(("price", int), ("amount", int))


@pytest.mark.parametrize(
    "new",
    [
        version(("amount", int), ("price", int)),
        version(("price", "int"), ("amount", Optional[int])),  # noqa: UP045
        version(("price", int), ("amount", int), ("note", str, {"default": ""})),
        version(("price", int), ("amount", int), ("notes", list, {"default_factory": list})),
        version(("price", int), ("amount", int), frozen=True),
    ],
)
def test_fields_may_move_widen_and_come_with_a_default(new: Any) -> None:
    assert differences(OLD, new) == []


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (version(("price", int)), [(Verdict.DROPPED, "field 'amount' is gone")]),
        (
            version(("price", int), ("number", int)),
            [
                (Verdict.DROPPED, "if it is 'number' now, give that its former name"),
                (Verdict.REFUSED, "field 'number' is new, and former records lack it: give it a"),
            ],
        ),
        (
            version(("price", int), ("amount", str)),
            [(Verdict.REFUSED, "field 'amount' was int and is str: change it back")],
        ),
        (
            version(("price", int), ("amount", int), ("by", str, {"init": False})),
            [(Verdict.REFUSED, "field 'by' is new")],
        ),
    ],
)
def test_other_changes_are_refused_with_a_reason(new: Any, expected: list[Any]) -> None:
    found = differences(OLD, new)
    assert len(found) == len(expected)
    for (verdict, reason), (expected_verdict, text) in zip(found, expected, strict=True):
        assert verdict is expected_verdict
        assert text in reason


def renamed(kind: Any, name: str) -> Any:
    kind.__module__, kind.__qualname__ = "shop", name
    return kind


def test_a_named_tuple_keeps_its_fields() -> None:
    old = renamed(NamedTuple("Pair", [("a", int), ("b", int)]), "Pair")
    assert differences(old, old) == []
    for fields in ([("b", int), ("a", int)], [("a", int)], [("a", int), ("c", int)]):
        new = renamed(NamedTuple("Pair", fields), "Pair")
        ((verdict, reason),) = differences(old, new)
        assert verdict is Verdict.REFUSED
        assert "its fields were (a, b)" in reason
    new = renamed(NamedTuple("Pair", [("a", str), ("b", int)]), "Pair")
    assert differences(old, new)[0][1].startswith("field 'a' was int and is str")
    ((_, reason),) = differences(old, version(("a", int), ("b", int), name="Pair"))
    assert reason.startswith("it was a named tuple")


def test_an_enum_keeps_its_members_and_a_flag_their_values() -> None:
    def colours(base: Any, **members: int) -> Any:
        return renamed(base("Colour", members), "Colour")

    old = colours(Enum, RED=1, BLUE=2)
    assert differences(old, colours(Enum, GREEN=1, BLUE=3, RED=4)) == []
    ((verdict, reason),) = differences(old, colours(Enum, RED=1))
    assert (verdict, "member 'BLUE' is gone" in reason) == (Verdict.REFUSED, True)
    ((_, reason),) = differences(colours(Flag, A=1, B=2), colours(Flag, A=1, B=4, C=2))
    assert reason.startswith("member 'B' was 2 and is 4")


# --- reading


def reread(old: Any, new: Any, values: list[Any]) -> list[Any]:
    """The values, written with an old version of a class, read with a new one."""
    before = TypeRegistry([old])
    writer, reader = Codec(before), Codec(TypeRegistry([new]).extending(before.schemas()))
    read = reader.decode_batch(writer.encode_batch(values))
    assert [reader.decode_value(writer.encode_value(value)) for value in values] == read
    assert reader.decode_value(writer.encode_value({"all": values}))["all"] == read
    # What is written now does not look like what was written before.
    assert reader.decode_batch(reader.encode_batch(read)) == read
    assert [reader.decode_value(reader.encode_value(value)) for value in read] == read
    return read


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"slots": True}])
def test_rows_of_a_former_version_are_mapped_by_name(options: dict[str, bool]) -> None:
    old = version(("price", int), ("amount", int), **options)
    new = version(
        ("amount", int),
        ("price", int),
        ("note", str, {"default": "-"}),
        ("notes", list, {"default_factory": list}),
        **options,
    )
    first, second = reread(old, new, [old(1, 1000), old(2, 2000)])
    assert (first, second) == (new(1000, 1, "-", []), new(2000, 2, "-", []))
    assert first.notes is not second.notes
    fewer = version(("amount", int), **options)
    assert reread(old, fewer, [old(1, 1000)]) == [fewer(1000)]


def aliased(name: str, *aliases: str, **options: Any) -> tuple[str, type, dict[str, Any]]:
    return name, int, {"metadata": {"aliases": list(aliases)}, **options}


def test_a_renamed_field_is_found_by_its_aliases() -> None:
    old = version(("price", int), ("amount", int))
    new = version(aliased("count", "amount"), aliased("cents", "cost", "price"))
    assert compare_schemas(schemas(old), schemas(new)) == []
    codec = Codec(TypeRegistry([new]).extending(schemas(old)))
    assert codec.decode_value(Codec(TypeRegistry([old])).encode_value(old(3, 7))) == new(7, 3)
    wider = version(("price", int), ("count", str, {"metadata": {"aliases": ["amount"]}}))
    (other,) = compare_schemas(schemas(old), schemas(wider))
    assert "field 'count' was int and is str" in other.reason


def test_the_field_that_may_have_been_renamed_is_named() -> None:
    old, new = version(("price", int)), version(("note", str, ""), ("prices", int, 0))
    (gone,) = compare_schemas(schemas(old), schemas(new))
    assert gone.verdict is Verdict.DROPPED
    assert "prices: ... = field(metadata={'aliases': ['price']})" in gone.reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([aliased("a", "b"), ("b", int)], "'b' would be the name of two fields"),
        ([aliased("a", "c"), aliased("b", "c")], "'c' would be the name of two fields"),
        ([aliased("a", "a")], "its present name"),
        ([("a", int, {"metadata": {"aliases": "old"}})], "a list of names"),
    ],
)
def test_wrong_aliases_of_fields_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=message):
        TypeRegistry([version(*fields)])


def test_all_versions_of_a_class_stay_readable() -> None:
    versions = [
        version(("a", int), ("b", int)),
        version(("b", int), ("a", int)),
        version(("a", int), ("b", int), ("c", int, {"default": 3})),
    ]
    known: list[RecordSchema] = []
    written: list[bytes] = []
    for kind in [*versions, versions[0]]:
        codec = Codec(table := TypeRegistry([kind]).extending(known))
        written.append(codec.encode_batch([kind(a=1, b=2)]))
        known = table.schemas()
        for data in written:
            assert codec.decode_batch(data) == [kind(a=1, b=2)]
    # The last is the first again.
    assert len(known) == 3


def test_a_field_without_a_default_is_an_error_if_it_was_not_refused_before() -> None:
    with pytest.raises(ProtocolError, match="field 'c' of shop:Order has no default"):
        reread(OLD, version(("price", int), ("c", int)), [OLD(1, 2)])


def test_manifests_have_the_fields_of_classes_that_were_written() -> None:
    other = version(("a", int), name="Settings")
    types = RecordClasses([OLD, other])
    codec = Codec(
        TypeRegistry([OLD, other]).extending(map(RecordSchema.from_wire, types.to_wire()))
    )
    codec.encode_batch([OLD(1, 2)])
    types.record_written(codec.written_types())
    order, settings = types.schemas()
    assert (str(order), str(settings)) == ("shop:Order(price, amount)", "shop:Settings")
    # A class of which nothing was written may change as it likes.
    changed = [OLD, version(("b", str), name="Settings")]
    assert compare_schemas(types.schemas(), schemas(*changed)) == []


def test_a_snapshot_without_fields_is_read_by_position_and_the_next_one_has_them() -> None:
    names = (RecordSchema("gone:Gone"), RecordSchema("shop:Order"))
    manifest = replace(GOLDEN_2, types=names)
    types = RecordClasses([OLD])
    assert types.differences(manifest) == []
    types.restore(manifest)
    gone, order = types.schemas()
    assert (str(gone), str(order)) == ("gone:Gone", "shop:Order(price, amount)")
    # A later version of Penstock, and of the class, compares with what that snapshot has.
    later = RecordClasses([version(("price", int))])
    assert [one.verdict for one in later.differences(replace(manifest, types=(gone, order)))] == [
        Verdict.DROPPED
    ]


# --- whole jobs


class Keep(KeyedProcessFunction):
    """Keeps the first record of each key, and emits it for each other one."""

    def open(self, runtime_context: Any) -> None:
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        del ctx
        kept = self.kept.value()
        if kept is None:
            self.kept.update(value)
        else:
            yield repr(kept)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    LEDGERS[7] = Ledger()
    yield LEDGERS[7]
    del LEDGERS[7]


def run(make: Callable[[int], Any], folder: Path, **options: Any) -> set[str]:
    """Run a job that keeps a record, for a while on the simulated cluster.

    Returns what it added to the ledger, or raises what ended it.
    """
    ledger = LEDGERS[7]
    before = ledger.output()

    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(make, None, 400.0, clock=trio.current_time)
        keyed = env.from_source(source, None, "orders").uid("orders").key_by(lambda order: 0)
        keyed.process(Keep()).uid("keep").sink_to(LedgerSink(7)).uid("sink")

    async def stop(job: JobManager, machine: Machine, events: Any) -> None:
        await trio.sleep(1)
        job.stop()

    config = JobConfig(
        name="orders",
        checkpoint_dir=str(folder),
        checkpoint_interval_seconds=0.05,
        inline_threshold=options.pop("inline_threshold", 1 << 20),
    )
    ran = run_program(program(build, config), options=JobSettings(**options), script=stop)
    assert not ran.crashes
    if isinstance(ran.outcome, PenstockError):
        raise ran.outcome
    return set(ledger.output() - before)


@pytest.mark.parametrize("inline_threshold", [0, 1 << 20], ids=["rocksdb", "inline"])
def test_a_resumed_job_finds_the_fields_of_its_state_by_name(
    tmp_path: Path, inline_threshold: int, ledger: Ledger
) -> None:
    old = version(("price", int), ("amount", int))
    assert run(lambda i: old(i, 1000), tmp_path, inline_threshold=inline_threshold) == {
        "Order(price=0, amount=1000)"
    }
    new = version(("amount", int), ("price", int), ("note", str, {"default": "-"}))
    options = {"resume": "newest", "inline_threshold": inline_threshold}
    expected = {"Order(amount=1000, price=0, note='-')"}
    # Twice: the second run restores what the first one restored, with the number it had.
    assert run(lambda i: new(7, i), tmp_path, **options) == expected
    assert run(lambda i: new(8, i), tmp_path, **options) == expected
    # Read without the classes, a former version has the fields of the newest, or None.
    (entry,) = [entry for part in find_state(tmp_path) for entry in read_part(part)]
    assert entry.value[:2] == (1000, 0)
    assert entry.value[2] in (None, "-")


def test_a_class_that_does_not_fit_is_refused_before_the_job_starts(
    tmp_path: Path, ledger: Ledger
) -> None:
    old = version(("price", int), ("amount", int))
    run(lambda i: old(i, 1000), tmp_path)
    other = version(("price", int), ("number", int))
    with pytest.raises(GraphError) as caught:
        run(lambda i: other(i, 1000), tmp_path, resume="newest")
    assert "shop:Order (dataclass): refused: field 'number' is new" in str(caught.value)
    fewer = version(("price", int))
    with pytest.raises(GraphError, match="left behind with --allow-dropped"):
        run(fewer, tmp_path, resume="newest")
    dropped = run(fewer, tmp_path, resume="newest", allow_dropped=True)
    assert dropped == {"Order(price=0)"}
