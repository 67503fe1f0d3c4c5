"""The kinds of keyed state as functions see them, with the methods of PyFlink."""

import pytest

from penstock import (
    AggregateFunction,
    AggregatingStateDescriptor,
    GraphError,
    JobError,
    KeyRefusedError,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from penstock.runtime.operators.state import NamespaceScope, StateStore, merge_namespaces
from tests.runtime.operators.state.states import context_of, with_key
from tests.snapshot.state.backends import as_rows, drive


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Longest(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2, key=len)


@pytest.fixture
def context(make):
    return with_key(context_of(make()), "a")


def test_a_list_state_has_the_methods_of_pyflink(context):
    state = context.get_list_state(ListStateDescriptor("l"))
    assert state.get() == [] and list(state) == []
    state.add(1)
    state.add_all([2, None, [3]])
    assert state.get() == [1, 2, None, [3]]
    context.key = "b"
    assert state.get() == []
    state.add("other")
    context.key = "a"
    state.update(iter(["x", "y"]))
    assert list(state) == ["x", "y"]
    state.add("z")
    assert state.get() == ["x", "y", "z"]
    state.update([])
    assert state.get() == []
    state.add(7)
    state.clear()
    state.clear()
    assert state.get() == []
    context.key = "b"
    assert state.get() == ["other"]
    for wrong in ("text", 7):
        with pytest.raises(TypeError, match="takes an iterable of elements"):
            state.add_all(wrong)


def test_a_map_state_has_the_methods_of_pyflink(context):
    state = context.get_map_state(MapStateDescriptor("m"))
    assert state.is_empty() and list(state.items()) == [] and state.get("x") is None
    state.put("x", 1)
    state["y"] = 2
    state.put_all({"z": None, ("t", 1): [4]})
    assert dict(state.items()) == {"x": 1, "y": 2, "z": None, ("t", 1): [4]}
    assert set(state.keys()) == set(state) == {"x", "y", "z", ("t", 1)}
    assert sorted(map(str, state.values())) == ["1", "2", "None", "[4]"]
    assert state.contains("z") and "z" in state and state["z"] is None
    assert "no" not in state and state["no"] is None
    del state["y"]
    state.remove("x")
    state.remove("never there")
    assert not state.contains("x") and not state.is_empty()
    context.key = "b"
    assert state.is_empty()
    state.put("x", "b's")
    context.key = "a"
    state.clear()
    assert state.is_empty() and dict(state.items()) == {}
    context.key = "b"
    assert dict(state.items()) == {"x": "b's"}


def test_a_map_may_change_while_it_is_read(context):
    state = context.get_map_state(MapStateDescriptor("m"))
    state.put_all({i: i for i in range(6)})
    for key in state:
        state.remove(5 - key)
        state.put(key + 100, key)
    assert set(state.keys()) == {0, 1, 2, 100, 101, 102}


@pytest.mark.parametrize("key", [float("nan"), frozenset({1})])
def test_a_key_of_a_map_must_be_a_type_of_keys(context, key):
    state = context.get_map_state(MapStateDescriptor("m"))
    with pytest.raises(KeyRefusedError):
        state.put(key, 1)
    assert state.is_empty()


def test_a_reducing_state_combines_what_is_added(context):
    for function in (Longest(), lambda a, b: max(a, b, key=len)):
        state = context.get_reducing_state(ReducingStateDescriptor(f"r{function}", function))
        assert state.get() is None
        for word in ("a", "ccc", "bb"):
            state.add(word)
        assert state.get() == "ccc"
        state.clear()
        assert state.get() is None


def test_an_aggregating_state_stores_an_accumulator(context):
    state = context.get_aggregating_state(AggregatingStateDescriptor("g", Mean()))
    assert state.get() is None
    state.add(1)
    state.add(4)
    assert state.get() == 2.5
    context.key = "b"
    assert state.get() is None
    context.key = "a"
    state.clear()
    assert state.get() is None


def test_an_aggregating_state_keeps_what_get_result_changes_in_place(context):
    class Drained(AggregateFunction):
        def create_accumulator(self):
            return []

        def add(self, value, accumulator):
            accumulator.append(value)
            return accumulator

        def get_result(self, accumulator):
            return accumulator.pop()

        def merge(self, a, b):
            return a + b

    state = context.get_aggregating_state(AggregatingStateDescriptor("d", Drained()))
    state.add(1)
    state.add(2)
    assert [state.get(), state.get()] == [2, 1]


def test_the_same_descriptor_gives_the_same_state(context):
    context.get_list_state(ListStateDescriptor("l")).add(1)
    assert context.get_list_state(ListStateDescriptor("l")).get() == [1]


def test_one_name_with_two_kinds_is_refused(context):
    context.get_state(ValueStateDescriptor("s"))
    with pytest.raises(
        GraphError, match=r"'Sum' uses the name 's' for a value state and for a map"
    ):
        context.get_map_state(MapStateDescriptor("s"))


def test_a_descriptor_of_another_kind_is_refused(context):
    with pytest.raises(GraphError, match=r"asked for a map state .* use a MapStateDescriptor"):
        context.get_map_state(ValueStateDescriptor("s"))
    with pytest.raises(GraphError, match="asked for a value state"):
        context.get_state("s")


def test_state_without_a_keyed_stream_is_refused():
    with pytest.raises(GraphError, match=r"'Sum' asked for state 'l', .* use key_by"):
        context_of(None).get_list_state(ListStateDescriptor("l"))


def test_state_without_a_current_key_is_refused(make):
    context = context_of(make())
    for access in (
        lambda: context.get_state(ValueStateDescriptor("v")).value(),
        lambda: context.get_map_state(MapStateDescriptor("m")).put(1, 2),
        lambda: context.get_list_state(ListStateDescriptor("l")).add(1),
        lambda: context.get_map_state(MapStateDescriptor("m")).is_empty(),
    ):
        with pytest.raises(JobError, match="no current key"):
            access()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: ReducingStateDescriptor("r", 7), "'r' takes a function, not 7"),
        (lambda: ReducingStateDescriptor("r", lambda a: a), "calls its function as reduce"),
        (lambda: ReducingStateDescriptor("r", Longest), "an instance of Longest, not the class"),
        (lambda: AggregatingStateDescriptor("g", max), "needs an instance of an AggregateFunction"),
        (
            lambda: AggregatingStateDescriptor("g", Mean),
            "needs an instance of an AggregateFunction",
        ),
    ],
)
def test_a_descriptor_with_a_wrong_function_is_refused_at_once(made, message):
    with pytest.raises(GraphError, match=message):
        made()


def test_changes_in_place_are_kept_and_not_seen_by_older_snapshots(make):
    backend = make(inline_threshold=0)
    context = with_key(context_of(backend), "a")
    states = (
        context.get_list_state(ListStateDescriptor("l")),
        context.get_map_state(MapStateDescriptor("m")),
    )
    states[0].add(["element"])
    states[1].put("x", ["value"])
    first = backend.capture(1)
    states[0].get()[0].append(1)
    next(states[1].values()).append(1)
    handle = drive(first.write(make.root / "1"))[0]
    second = drive(backend.capture(2).write(make.root / "2"))[0]
    for taken, expected in ((handle, []), (second, [1])):
        restored = with_key(context_of(make.restored(taken)), "a")
        assert restored.get_list_state(ListStateDescriptor("l")).get() == [["element", *expected]]
        assert restored.get_map_state(MapStateDescriptor("m")).get("x") == ["value", *expected]


def test_a_long_cold_list_is_read_in_order(make):
    backend = make(inline_threshold=0)
    context = with_key(context_of(backend), "a")
    context.get_list_state(ListStateDescriptor("l")).add_all(range(300))
    restored = make.restored(make.snapshot(as_rows(backend), 1))
    state = with_key(context_of(restored), "a").get_list_state(ListStateDescriptor("l"))
    assert not restored.tables.named("l").clean
    state.add(300)
    assert state.get() == list(range(301))
    assert len(restored.tables.named("l").clean) >= 300


def test_states_of_a_namespace_are_apart_and_can_be_merged(make):
    context = with_key(context_of(make()), "a")
    scope = NamespaceScope(context)
    store = StateStore("Sum", context.backend, scope, lambda: 0, "window.")
    states = {
        ListStateDescriptor("l"): (lambda s: s.get(), [1, 2, 3, 4]),
        ReducingStateDescriptor("r", lambda a, b: a + b): (lambda s: s.get(), 10),
        AggregatingStateDescriptor("g", Mean()): (lambda s: s.get(), 2.5),
    }
    for descriptor, (read, merged) in states.items():
        state = store.of_descriptor(descriptor)
        for key in ("a", "b"):
            context.key = key
            for window, values in (((0, 5), [1, 2]), ((5, 9), [3]), ((9, 10), [4])):
                scope.set_namespace(window)
                for value in values:
                    state.add(value)
        before = read(state)
        context.key = "a"
        merge_namespaces(state, scope, (0, 5), [(0, 5), (5, 9), (7, 7), (9, 10)])
        assert read(state) == merged
        scope.set_namespace((5, 9))
        assert not read(state)
        context.key = "b"
        scope.set_namespace((9, 10))
        assert read(state) == before
    windows = store.get_map_state(MapStateDescriptor("m"))
    values = store.get_state(ValueStateDescriptor("v"))
    for window in ((0, 5), (5, 9)):
        scope.set_namespace(window)
        windows.put("of", window)
        values.update(window)
    assert dict(windows.items()) == {"of": (5, 9)} and values.value() == (5, 9)
    windows.clear()
    values.clear()
    scope.set_namespace((0, 5))
    assert dict(windows.items()) == {"of": (0, 5)} and values.value() == (0, 5)
    with pytest.raises(GraphError, match="no descriptor"):
        store.of_descriptor("v")


def test_states_that_are_cleared_again_take_no_memory_without_snapshots(make):
    backend = make()
    context = context_of(backend)
    value = context.get_state(ValueStateDescriptor("v"))
    single = context.get_reducing_state(ReducingStateDescriptor("r", Longest()))
    items = context.get_list_state(ListStateDescriptor("l"))
    entries = context.get_map_state(MapStateDescriptor("m"))
    for key in range(100):
        context.key = key
        value.update([key])
        single.add("x")
        items.add_all([1, 2])
        entries.put("k", 1)
        assert list(entries.items()) == [("k", 1)]
        for state in (value, single, items, entries):
            state.clear()
        value.update(1)
        value.update(None)
        items.update([1])
        items.update([])
        entries.put("k", 2)
        entries.remove("k")
    assert backend.tables.memory_bytes() == 0
