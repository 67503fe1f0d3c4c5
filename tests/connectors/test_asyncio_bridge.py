"""`AsyncioBridge`: coroutines called from other threads, queues, ends of every kind."""

import asyncio
import concurrent.futures
import contextvars
import gc
import os
import pickle
import threading
import traceback
from pathlib import Path

import pytest

from penstock.connectors.asyncio_bridge import AsyncioBridge, BridgeClosedError
from penstock.dataflow.errors import Recoverability, connector_recoverability
from tests.processes.harness import PATIENCE, wait_until

FOREVER = 10 * PATIENCE


@pytest.fixture
def bridge():
    before = {*threading.enumerate()}
    with AsyncioBridge("of a test") as bridge:
        yield bridge
    assert not {*threading.enumerate()} - before


class InThread:
    """Runs a function in a thread; `outcome` waits for its result or its error."""

    def __init__(self, function, *arguments):
        self._future = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(function, *arguments), daemon=True)
        self._thread.start()

    def _run(self, function, *arguments):
        try:
            self._future.set_result(function(*arguments))
        except BaseException as error:
            self._future.set_exception(error)

    def outcome(self):
        result = self._future.exception(PATIENCE) or self._future.result()
        self._thread.join(PATIENCE)
        return result


class Sleeper:
    """A coroutine that never ends by itself, and notes what happens to it."""

    def __init__(self):
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def sleep(self):
        self.begun.set()
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def double(number):
    await asyncio.sleep(0)
    return 2 * number


async def numbers(queue, count):
    for number in range(count):
        await queue.put(number)


def take_all(queue, max_records=100):
    records = []
    while (taken := queue.take(max_records, PATIENCE)) is not None:
        assert 0 < len(taken) <= max_records
        records += taken
    return records


# ---- calls


def test_a_call_returns_the_result_of_its_coroutine(bridge):
    assert bridge.call(double(21)) == 42
    assert bridge.call(double(1), timeout=PATIENCE) == 2


def test_many_threads_call_at_the_same_time(bridge):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = threads.map(lambda n: bridge.call(double(n)), range(200))
        assert list(results) == [2 * n for n in range(200)]


def test_an_awaitable_that_is_no_coroutine_is_awaited(bridge):
    class Now:
        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return "now"

    assert bridge.call(Now()) == "now"


def test_an_error_has_the_traceback_of_the_coroutine_and_of_the_caller(bridge):
    async def inner():
        raise ValueError("bad news")

    async def outer():
        await inner()

    for _ in range(2):
        with pytest.raises(ValueError, match="bad news") as caught:
            bridge.call(outer())
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[0].startswith("test_an_error")
        assert names[-2:] == ["outer", "inner"]


def test_the_traceback_does_not_grow_when_an_error_is_raised_again(bridge):
    async def fail():
        raise ValueError("bad news")

    task, lengths = bridge.start(fail()), []
    for _ in range(3):
        with pytest.raises(ValueError) as caught:
            task.result()
        lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert lengths[0] == lengths[1] == lengths[2]


def test_a_call_that_takes_too_long_is_cancelled(bridge):
    sleeper = Sleeper()
    with pytest.raises(TimeoutError, match=r"0\.01 seconds in the asyncio bridge 'of a test'"):
        bridge.call(sleeper.sleep(), timeout=0.01)
    # A coroutine whose caller gave up before it began never ran.
    assert bridge.call(double(1)) == 2
    assert sleeper.cancelled.is_set() or not sleeper.begun.is_set()


def test_a_time_out_of_the_coroutine_itself_is_no_time_out_of_the_call(bridge):
    async def fail():
        raise TimeoutError("of the client")

    with pytest.raises(TimeoutError, match="of the client"):
        bridge.call(fail(), timeout=PATIENCE)


def test_a_task_goes_on_after_a_time_out_of_its_result(bridge):
    async def make():
        return asyncio.Event()

    event = bridge.call(make())
    task = bridge.start(event.wait())
    with pytest.raises(TimeoutError):
        task.result(0.01)
    assert not task.done()
    bridge.start(call(event.set))
    assert task.result(PATIENCE) is True and task.done()


async def call(function):
    function()


def test_a_cancelled_task_raises_an_error_that_is_an_exception(bridge):
    sleeper = Sleeper()
    task = bridge.start(sleeper.sleep())
    assert sleeper.begun.wait(PATIENCE)
    task.cancel()
    # Not the CancelledError of asyncio, which the engine would not catch.
    with pytest.raises(concurrent.futures.CancelledError, match="of a test") as caught:
        task.result(PATIENCE)
    assert isinstance(caught.value, Exception)
    task.cancel()  # does nothing


def test_a_call_has_the_context_of_its_caller(bridge):
    variable = contextvars.ContextVar("variable", default="none")

    async def read():
        return variable.get()

    variable.set("mine")
    assert bridge.call(read()) == "mine"


def test_code_in_the_loop_cannot_wait_for_the_loop(bridge):
    async def wait():
        return bridge.call(double(1))

    async def take():
        return queue.take(1)

    queue = bridge.queue(1)
    for coroutine in (wait(), take()):
        with pytest.raises(RuntimeError, match="use `await` there"):
            bridge.call(coroutine)


# ---- queues


@pytest.mark.parametrize("capacity", [1, 2, 7, 1000])
@pytest.mark.parametrize("max_records", [1, 3, 1000])
def test_a_reader_gets_all_records_in_order(bridge, capacity, max_records):
    queue = bridge.produce(lambda queue: numbers(queue, 300), capacity)
    assert take_all(queue, max_records) == list(range(300))
    assert queue.take(1) is None  # also later


def test_an_asynchronous_generator_fills_a_queue_and_is_closed(bridge):
    closed = threading.Event()

    async def generate():
        try:
            for number in range(10):
                yield number
            await asyncio.sleep(FOREVER)
        finally:
            closed.set()

    queue = bridge.iterate(generate(), capacity=3)
    records = []
    while len(records) < 10:
        records += queue.take(4, PATIENCE)
    assert records == list(range(10))
    queue.close()
    assert closed.wait(PATIENCE)


def test_take_returns_an_empty_list_if_nothing_comes(bridge):
    queue = bridge.queue(5)
    assert queue.take(10, timeout=0) == [] == queue.take(10, timeout=0.001)
    assert queue.put_nowait("late")
    assert queue.take(10) == ["late"]


def test_a_full_queue_holds_back_its_producer(bridge):
    queue = bridge.produce(lambda queue: numbers(queue, 100), capacity=10)
    wait_until(lambda: queue.qsize() == 10, "the full queue")
    for _ in range(20):
        bridge.call(double(1))  # the loop runs, and the producer does not
    assert queue.qsize() == 10
    assert queue.put_nowait("too many") is False
    assert take_all(queue) == list(range(100))


def test_many_records_are_put_at_once_and_also_held_back(bridge):
    async def produce(queue):
        await queue.put_all(range(25))
        await queue.put_all([])
        await queue.put_all(iter("ab"))

    queue = bridge.produce(produce, capacity=10)
    wait_until(lambda: queue.qsize() == 10, "the full queue")
    assert take_all(queue, 4) == [*range(25), "a", "b"]


def test_several_producers_share_a_queue(bridge):
    queue = bridge.queue(3)

    async def produce(of):
        for number in range(100):
            await (queue.put((of, number)) if of % 2 else queue.put_all([(of, number)]))

    async def produce_all():
        await asyncio.gather(*map(produce, range(6)))
        queue.end()

    bridge.start(produce_all())
    records = take_all(queue, 2)
    assert len(records) == 600
    for of in range(6):
        assert [number for by, number in records if by == of] == list(range(100))


def test_records_before_an_error_come_before_the_error(bridge):
    async def produce(queue):
        await numbers(queue, 3)
        raise OSError("the connection is lost")

    queue = bridge.produce(produce, capacity=2)
    records = []
    with pytest.raises(OSError, match="lost") as caught:
        while True:
            records += queue.take(1, PATIENCE)
    assert records == [0, 1, 2]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "produce"
    with pytest.raises(OSError, match="lost"):
        queue.take(1)


def test_a_producer_that_cancels_itself_is_an_error_and_no_end(bridge):
    async def produce(queue):
        await queue.put(1)
        raise asyncio.CancelledError("by the client")

    queue = bridge.produce(produce, capacity=2)
    assert queue.take(1, PATIENCE) == [1]
    with pytest.raises(concurrent.futures.CancelledError, match="of a test"):
        queue.take(1, PATIENCE)


def test_callbacks_of_a_client_can_fill_end_and_fail_a_queue(bridge):
    queue, failing = bridge.queue(2), bridge.queue(2)
    assert [queue.put_nowait(number) for number in range(3)] == [True, True, False]
    queue.end()
    failing.fail(OSError("gone"))
    assert queue.take(5) == [0, 1] and queue.take(5) is None
    with pytest.raises(OSError, match="gone"):
        failing.take(1)


def test_a_queue_without_room_is_refused(bridge):
    with pytest.raises(ValueError, match="at least 1"):
        bridge.queue(0)


# ---- ends


def test_close_wakes_a_thread_that_is_blocked_in_take(bridge):
    queue = bridge.queue(1)
    reader = InThread(queue.take, 1)
    assert bridge.close()
    assert isinstance(reader.outcome(), BridgeClosedError)
    with pytest.raises(BridgeClosedError, match="'of a test' is closed"):
        queue.take(1)


def test_close_wakes_a_thread_that_is_blocked_in_call(bridge):
    sleeper = Sleeper()
    caller = InThread(lambda: bridge.call(sleeper.sleep()))
    assert sleeper.begun.wait(PATIENCE)
    assert bridge.close()
    assert isinstance(caller.outcome(), BridgeClosedError)
    assert sleeper.cancelled.is_set()


def test_close_of_a_queue_wakes_its_reader_and_cancels_its_producer(bridge):
    sleeper = Sleeper()
    queue, other = bridge.produce(lambda _: sleeper.sleep(), 1), bridge.queue(1)
    reader = InThread(queue.take, 1)
    assert sleeper.begun.wait(PATIENCE)
    queue.close()
    assert isinstance(reader.outcome(), BridgeClosedError)
    assert sleeper.cancelled.wait(PATIENCE)
    assert other.put_nowait(1) and other.take(1) == [1]
    with pytest.raises(BridgeClosedError):
        bridge.call(queue.put(1))
    with pytest.raises(BridgeClosedError):
        bridge.call(queue.put_all([1]))


def test_a_producer_that_waits_for_room_ends_with_its_queue(bridge):
    queue = bridge.queue(1)
    task = bridge.start(numbers(queue, 5))
    wait_until(lambda: queue.qsize() == 1, "the full queue")
    queue.close()
    with pytest.raises(BridgeClosedError):
        task.result(PATIENCE)


def test_the_client_is_closed_between_the_calls_and_its_own_tasks(bridge):
    events = []

    async def background():
        try:
            await asyncio.sleep(FOREVER)
        finally:
            events.append("background ends")

    async def connect():
        return asyncio.create_task(background())

    async def call_server():
        try:
            await asyncio.sleep(FOREVER)
        finally:
            events.append("call ends")

    async def close_client():
        await asyncio.sleep(0.01)
        events.append("client closes")

    bridge.call(connect())
    bridge.start(call_server())
    assert bridge.call(double(1)) == 2  # both have begun
    assert bridge.close(close_client)
    assert events == ["call ends", "client closes", "background ends"]
    assert bridge.close(close_client) and len(events) == 3


def test_an_error_of_the_closing_client_is_logged(bridge, caplog):
    async def close_client():
        raise OSError("already closed")

    assert bridge.close(close_client)
    assert "the client of the asyncio bridge 'of a test' was not closed" in caplog.text
    assert "already closed" in caplog.text


def test_a_client_that_does_not_close_is_given_up(bridge, caplog):
    sleeper = Sleeper()
    bridge.close(sleeper.sleep, timeout=0.01)
    assert bridge._thread.end(PATIENCE)
    assert "was not closed" in caplog.text
    # On a slow machine it was cancelled before it began.
    assert sleeper.cancelled.is_set() or not sleeper.begun.is_set()


def test_a_task_that_blocks_the_loop_cannot_block_close(bridge, caplog):
    begun, release = threading.Event(), threading.Event()

    async def block():
        begun.set()
        release.wait()

    caller = InThread(lambda: bridge.call(block()))
    assert begun.wait(PATIENCE)
    assert bridge.close(timeout=0.01) is False
    assert isinstance(caller.outcome(), BridgeClosedError)
    assert "has not ended within 0.01 seconds" in caplog.text
    release.set()
    assert bridge._thread.end(PATIENCE)


def test_several_threads_close_at_once(bridge):
    closers = [InThread(bridge.close) for _ in range(4)]
    assert [closer.outcome() for closer in closers] == [True] * 4


def test_close_in_the_loop_itself_does_not_wait(bridge):
    bridge.start(call(bridge.close))
    wait_until(lambda: not bridge._thread.running, "the end of the thread")


def test_a_closed_bridge_refuses_everything_without_warnings(bridge):
    bridge.close()
    assert bridge.closed
    for use in (
        lambda: bridge.call(double(1)),
        lambda: bridge.start(double(1)),
        lambda: bridge.queue(1),
        lambda: bridge.produce(lambda queue: numbers(queue, 1), 1),
    ):
        with pytest.raises(BridgeClosedError, match="the asyncio bridge 'of a test' is closed"):
            use()
    gc.collect()  # would warn of coroutines that were never awaited


def test_calls_and_close_race_without_hanging_threads():
    for _ in range(50):
        bridge = AsyncioBridge("of a race")
        queue = bridge.produce(lambda queue: numbers(queue, 10_000), 3)
        start = threading.Barrier(4)

        def call_often(bridge=bridge, start=start):
            start.wait()
            while True:
                bridge.call(double(1))

        def take_often(queue=queue, start=start):
            start.wait()
            while True:
                queue.take(2)

        others = [InThread(call_often), InThread(call_often), InThread(take_often)]
        start.wait()
        assert bridge.close()
        assert all(isinstance(other.outcome(), BridgeClosedError) for other in others)
    gc.collect()


# ---- the death of the loop


@pytest.mark.parametrize("fatal", [SystemExit("of a library"), KeyboardInterrupt("of a library")])
def test_a_loop_that_dies_is_noticed_by_all(fatal):
    bridge = AsyncioBridge("of a test")
    queue, sleeper = bridge.queue(1), Sleeper()

    async def die():
        raise fatal

    reader = InThread(queue.take, 1)
    caller = InThread(lambda: bridge.call(sleeper.sleep()))
    assert sleeper.begun.wait(PATIENCE)
    killer = InThread(lambda: bridge.call(die()))
    for other in (reader, caller, killer):
        error = other.outcome()
        assert isinstance(error, BridgeClosedError)
        assert f"has ended with {type(fatal).__name__}: of a library" in str(error)
        assert error.__cause__ is fatal
    with pytest.raises(BridgeClosedError, match="of a library"):
        bridge.call(double(1))
    with pytest.raises(BridgeClosedError, match="of a library"):
        queue.take(1)
    assert bridge.closed and bridge.close()


def test_a_library_that_stops_the_loop_is_noticed():
    bridge = AsyncioBridge("of a test")
    queue = bridge.queue(1)
    reader = InThread(queue.take, 1)
    bridge._thread.loop.call_soon_threadsafe(bridge._thread.loop.stop)
    assert "loop stopped" in str(reader.outcome())
    assert bridge.close()


def test_the_engine_takes_it_for_the_loss_of_a_connection(bridge):
    bridge.close()
    with pytest.raises(BridgeClosedError) as caught:
        bridge.call(double(1))
    assert connector_recoverability(caught.value) is Recoverability.ENVIRONMENT


# ---- processes


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_refuses_the_bridge_and_leaves_that_of_its_parent_alone(bridge):
    queue = bridge.queue(1)
    pid = os.fork()
    if pid == 0:
        refused = 0
        for use in (lambda: bridge.call(double(1)), lambda: queue.take(1)):
            try:
                use()
            except BridgeClosedError as error:
                refused += "is a fork of" in str(error)
        queue.close()
        done = bridge.close()
        del use
        gc.collect()
        with AsyncioBridge("of the child") as own:
            refused += own.call(double(1)) == 2
        os._exit(0 if refused == 3 and done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bridge.call(double(21), PATIENCE) == 42
    assert queue.put_nowait(1) and queue.take(1) == [1]


def test_a_bridge_is_not_sent_to_another_process(bridge):
    with pytest.raises(TypeError, match="create it where it is used"):
        pickle.dumps(bridge)


def test_a_bridge_that_is_lost_warns_and_ends():
    before = threading.active_count()
    bridge = AsyncioBridge("forgotten")
    assert bridge.call(double(1)) == 2
    with pytest.warns(ResourceWarning, match="unclosed asyncio bridge 'forgotten'"):
        del bridge
        gc.collect()
    wait_until(lambda: threading.active_count() == before, "the end of the thread")


def test_nothing_is_left_open_after_many_bridges():
    def descriptors():
        return len([*Path("/proc/self/fd").iterdir()])

    with AsyncioBridge() as bridge:
        bridge.call(asyncio.to_thread(int))  # a thread of the loop's own executor
    gc.collect()  # of what other tests have left
    threads, files = threading.active_count(), descriptors()
    for _ in range(20):
        with AsyncioBridge() as bridge:
            queue = bridge.produce(lambda queue: numbers(queue, 100), 2)
            bridge.call(asyncio.to_thread(int))
            assert queue.take(2, PATIENCE)
    gc.collect()
    assert (threading.active_count(), descriptors()) == (threads, files)
