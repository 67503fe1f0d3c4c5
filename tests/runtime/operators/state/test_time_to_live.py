"""Time to live: what an access returns for expired values, and when they are removed."""

from datetime import timedelta

import pytest

from penstock import (
    AggregatingStateDescriptor,
    Duration,
    GraphError,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from penstock.runtime.operators.state import NamespaceScope, StateStore
from tests.runtime.operators.state.states import Clock, context_of, with_key
from tests.runtime.operators.state.test_states import Mean
from tests.snapshot.state.backends import as_rows, contents, drive

Update, Visibility = StateTtlConfig.UpdateType, StateTtlConfig.StateVisibility
HIDDEN, SHOWN = Visibility.NeverReturnExpired, Visibility.ReturnExpiredIfNotCleanedUp


def config(update=Update.OnCreateAndWrite, visibility=HIDDEN, ttl=100):
    builder = StateTtlConfig.new_builder(ttl).set_update_type(update)
    return builder.set_state_visibility(visibility).build()


def expiring(descriptor, *arguments):
    descriptor.enable_time_to_live(config(*arguments))
    return descriptor


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def context(make, clock):
    return with_key(context_of(make(), clock), "a")


@pytest.mark.parametrize("visibility", [HIDDEN, SHOWN])
def test_a_value_expires_when_its_time_has_passed_since_it_was_written(context, clock, visibility):
    descriptor = ValueStateDescriptor("v")
    state = context.get_state(expiring(descriptor, Update.OnCreateAndWrite, visibility))
    state.update([1])
    clock.now += 99
    assert state.value() == [1]
    clock.now += 1
    # An expired value is shown once, if at all, as the access removes it.
    assert state.value() == ([1] if visibility is SHOWN else None)
    assert state.value() is None
    assert contents(context.backend, "v") == {}
    state.update(2)
    clock.now += 99
    state.update(3)
    clock.now += 99
    assert state.value() == 3
    state.update(None)
    assert state.value() is None


def test_reading_may_begin_the_time_again(context, clock):
    state = context.get_state(expiring(ValueStateDescriptor("v"), Update.OnReadAndWrite))
    state.update(1)
    for _ in range(5):
        clock.now += 99
        assert state.value() == 1
    clock.now += 100
    assert state.value() is None


def test_entries_of_a_map_expire_one_by_one(context, clock):
    state = context.get_map_state(expiring(MapStateDescriptor("m")))
    state.put("old", 1)
    clock.now += 60
    state.put("new", None)
    assert dict(state.items()) == {"old": 1, "new": None}
    clock.now += 60
    assert state.get("old") is None and not state.contains("old") and "new" in state
    assert list(state.keys()) == ["new"] and list(state.values()) == [None]
    assert not state.is_empty()
    assert len(contents(context.backend, "m")) == 1
    clock.now += 60
    assert state.is_empty() and dict(state.items()) == {}
    assert contents(context.backend, "m") == {}
    state.put("x", 1)
    state.remove("x")
    state.put("y", 1)
    state.clear()
    assert state.is_empty()


def test_elements_of_a_list_expire_one_by_one(context, clock):
    state = context.get_list_state(expiring(ListStateDescriptor("l")))
    state.add(1)
    clock.now += 60
    state.add_all([2, 3])
    clock.now += 60
    assert state.get() == [2, 3]
    state.add(4)
    assert state.get() == [2, 3, 4]
    clock.now += 60
    assert state.get() == [4]
    assert contents(context.backend, "l") == {("a", 3): (4, clock.now - 60), ("a", None): (3, 4)}
    clock.now += 60
    assert state.get() == []
    assert contents(context.backend, "l") == {}
    state.add(5)
    assert state.get() == [5]


def test_an_expired_element_is_shown_once_if_at_all(context, clock):
    descriptor = expiring(ListStateDescriptor("l"), Update.OnReadAndWrite, SHOWN)
    state = context.get_list_state(descriptor)
    state.add_all([1, 2])
    clock.now += 99
    assert state.get() == [1, 2]
    clock.now += 100
    assert state.get() == [1, 2]
    assert state.get() == []


@pytest.mark.parametrize(("visibility", "total"), [(HIDDEN, 4), (SHOWN, 7)])
def test_an_expired_value_is_combined_only_if_it_is_visible(context, clock, visibility, total):
    descriptor = ReducingStateDescriptor("r", lambda a, b: a + b)
    reducing = context.get_reducing_state(expiring(descriptor, Update.OnCreateAndWrite, visibility))
    descriptor = AggregatingStateDescriptor("g", Mean())
    mean = context.get_aggregating_state(expiring(descriptor, Update.OnCreateAndWrite, visibility))
    for state in (reducing, mean):
        state.add(3)
    clock.now += 100
    for state in (reducing, mean):
        state.add(4)
    assert reducing.get() == total
    assert mean.get() == (4 if visibility is HIDDEN else 3.5)
    clock.now += 100
    assert (reducing.get() is None) == (visibility is HIDDEN)
    assert reducing.get() is None


def test_the_time_goes_on_while_the_job_is_down(make, clock):
    first = with_key(context_of(make(), clock), "a")
    first.get_state(expiring(ValueStateDescriptor("v"))).update(1)
    handle = make.snapshot(first.backend, 1)
    assert handle.expiring == (0,)
    for later, expected in ((99, 1), (100, None)):
        clock = Clock(1_000_000 + later)
        context = with_key(context_of(make.restored(handle), clock), "a")
        assert context.get_state(expiring(ValueStateDescriptor("v"))).value() == expected
    # The time to live may be changed: what counts is the time of the last use.
    context = with_key(context_of(make.restored(handle), Clock(1_000_500)), "a")
    descriptor = ValueStateDescriptor("v")
    descriptor.enable_time_to_live(config(ttl=1000))
    assert context.get_state(descriptor).value() == 1


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_restored_state_may_begin_or_cease_to_expire(make, clock, kind):
    def state_of(context, expires):
        made = {
            "value": lambda: (ValueStateDescriptor("s"), context.get_state),
            "list": lambda: (ListStateDescriptor("s"), context.get_list_state),
            "map": lambda: (MapStateDescriptor("s"), context.get_map_state),
        }[kind]
        descriptor, get = made()
        return get(expiring(descriptor) if expires else descriptor)

    def write(state):
        {
            "value": lambda: state.update((1, 2)),
            "list": lambda: state.add_all([(1, 2), 3]),
            "map": lambda: state.put("x", (1, 2)),
        }[kind]()

    def read(state):
        return {"value": lambda: state.value(), "list": lambda: state.get()}.get(
            kind, lambda: dict(state.items())
        )()

    context = with_key(context_of(make(), clock), "a")
    write(state_of(context, False))
    expected = read(state_of(context, False))
    context = with_key(context_of(make.restored(make.snapshot(context.backend, 1)), clock), "a")
    assert read(state_of(context, True)) == expected
    handle = make.snapshot(context.backend, 2)
    plain = with_key(context_of(make.restored(handle), clock), "a")
    assert read(state_of(plain, False)) == expected
    clock.now += 100
    assert not read(state_of(context, True))


def test_a_configuration_has_the_getters_of_pyflink():
    made = (
        StateTtlConfig.new_builder(Time.seconds(5))
        .update_ttl_on_read_and_write()
        .return_expired_if_not_cleaned_up()
        .use_processing_time()
        .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(1000, Duration.of_hours(1))
        .disable_cleanup_in_background()
        .build()
    )
    assert made.get_ttl() == Time.seconds(5)
    assert made.get_update_type() is Update.OnReadAndWrite
    assert made.get_state_visibility() is SHOWN
    assert made.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert made.is_enabled()
    cleanup = made.get_cleanup_strategies()
    assert cleanup.in_full_snapshot() and cleanup.in_rocksdb_compact_filter()
    assert not cleanup.is_cleanup_in_background()
    assert cleanup.get_incremental_cleanup_strategy().get_cleanup_size() == 10
    assert cleanup.get_incremental_cleanup_strategy().run_cleanup_for_every_record()
    compaction = cleanup.get_rocksdb_compact_filter_cleanup_strategy()
    assert compaction.get_query_time_after_num_entries() == 1000
    assert compaction.get_periodic_compaction_time() == 3_600_000
    default = StateTtlConfig.new_builder(timedelta(minutes=1)).build()
    assert default.get_ttl() == Time.minutes(1)
    assert default.get_update_type() is Update.OnCreateAndWrite
    assert default.get_state_visibility() is HIDDEN
    assert default.get_cleanup_strategies().is_cleanup_in_background()


def builder(ttl=1000):
    return StateTtlConfig.new_builder(ttl)


def cleaned(context, descriptor, made):
    descriptor.enable_time_to_live(made.build())
    return context.states.of_descriptor(descriptor)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("kind", [ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor])
def test_what_is_not_accessed_any_more_is_removed_in_the_background(make, clock, kind, rows):
    backend = make(inline_threshold=0)
    context = context_of(backend, clock)
    state = cleaned(context, kind("s"), builder())
    add = {
        ValueStateDescriptor: lambda value: state.update(value),
        ListStateDescriptor: lambda value: state.add_all([value, value]),
        MapStateDescriptor: lambda value: state.put(value, value),
    }[kind]
    for key in range(2000):
        context.key = key
        add(key)
        clock.now += 1 if key == 1000 else 0
    if rows:
        as_rows(backend)
        drive(backend.capture(1).write(make.root / "1"))
        backend.tables.named("s").evict(10**6)
        assert backend.tables.named("s").entries_in_memory() == 0
    clock.now += 999
    context.key = "x"
    for _ in range(6000):
        add(0)
    kept = {key if kind is ValueStateDescriptor else key[0] for key in contents(backend, "s")}
    assert kept == {*range(1001, 2000), "x"}


def test_the_elements_of_a_list_of_a_window_expire_too(make, clock):
    context = with_key(context_of(make(), clock), "a")
    scope = NamespaceScope(context)
    store = StateStore("Sum", context.backend, scope, clock, "window.")
    scope.set_namespace((0, 5))
    descriptor = ListStateDescriptor("l")
    descriptor.enable_time_to_live(builder().build())
    state = store.get_list_state(descriptor)
    state.add_all([1, 2])
    clock.now += 500
    state.add(3)
    for _ in range(200):
        state.get()
    assert state.get() == [1, 2, 3]
    clock.now += 500
    for _ in range(200):
        assert state.get() == [3]
    clock.now += 500
    scope.set_namespace((5, 9))
    for _ in range(200):
        state.add(4)
        state.clear()
    assert contents(context.backend, "window.l") == {}


def test_a_state_is_cleaned_up_with_every_record_if_it_is_told_so(context, clock):
    state = cleaned(context, ValueStateDescriptor("v"), builder().cleanup_incrementally(1, True))
    idle = cleaned(context, ValueStateDescriptor("w"), builder().cleanup_incrementally(1, False))
    for each in (state, idle):
        each.update(1)
    clock.now += 1000
    for _ in range(5):
        context.states.clean_up()
    assert contents(context.backend, "v") == {}
    assert len(contents(context.backend, "w")) == 1


def test_nothing_is_removed_in_the_background_if_that_is_disabled(context, clock):
    state = cleaned(context, ValueStateDescriptor("v"), builder().disable_cleanup_in_background())
    state.update(1)
    clock.now += 5000
    context.key = "b"
    for _ in range(1000):
        state.update(1)
    assert contents(context.backend, "v").keys() == {"a", "b"}


def test_a_snapshot_of_the_whole_state_may_leave_out_expired_values(make, clock):
    backend = make()
    context = with_key(context_of(backend, clock), "a")
    descriptors = [
        (ValueStateDescriptor("kept"), builder()),
        (ValueStateDescriptor("left"), builder().cleanup_full_snapshot()),
        (ListStateDescriptor("list"), builder().cleanup_full_snapshot()),
    ]
    kept, left, elements = (cleaned(context, *each) for each in descriptors)
    kept.update(1)
    left.update(1)
    elements.add_all([1, 2])
    clock.now += 1000
    elements.add(3)
    handle = make.snapshot(backend, 1)
    assert handle.inline is not None
    restored = make.restored(handle)
    assert len(contents(restored, "kept")) == 1
    assert contents(restored, "left") == {}
    assert len(contents(restored, "list")) == 2
    again = with_key(context_of(restored, clock), "a")
    assert cleaned(again, *descriptors[2]).get() == [3]
    assert len(contents(backend, "left")) == 1


def test_a_disabled_time_to_live_changes_nothing(context, clock):
    state = context.get_state(expiring(ValueStateDescriptor("v"), Update.Disabled))
    state.update(1)
    clock.now += 10**9
    assert state.value() == 1
    assert contents(context.backend, "v") == {"a": 1}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: StateTtlConfig.new_builder(0), "time to live of a state must be at least 1 ms"),
        (lambda: StateTtlConfig.new_builder("1h"), "time to live of a state"),
        (
            lambda: StateTtlConfig.new_builder(1).set_update_type("OnRead"),
            "set_update_type takes one of Disabled, OnCreateAndWrite, OnReadAndWrite",
        ),
        (
            lambda: StateTtlConfig.new_builder(1).cleanup_incrementally(0, False),
            "cleanup_size must be at least 1",
        ),
        (
            lambda: ValueStateDescriptor("v").enable_time_to_live(StateTtlConfig.new_builder(1)),
            r"'v' takes a StateTtlConfig, .*build\(\)",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_at_once(made, message):
    with pytest.raises(GraphError, match=message):
        made()
