"""State that cannot be decoded although the checksum of its manifest is correct.

The job ends at once, with an error that names the snapshot, the operator and what to do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from penstock import CheckpointedFunction, ListStateDescriptor, MapFunction
from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import PenstockError, Recoverability
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.snapshot.metadata.handles import OWN_INPUT, LogHandle, OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.storage.in_flight_log import BATCH, frame
from penstock.snapshot.storage.store import Store
from penstock.testing.simulation.machine import Machine
from tests.simulation.run_program import Events, Ran, program, run_program


class Held(MapFunction, CheckpointedFunction):
    """Keeps the newest number in a list state."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.state = store.get_list_state(ListStateDescriptor("newest"))
        self.newest = [*self.state.get()]

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.newest)

    def map(self, value: int) -> int:
        self.newest = [value]
        return value


def build(env: StreamExecutionEnvironment) -> None:
    source = GeneratorSource(lambda i: i, None, 300.0, clock=trio.current_time)
    held = env.from_source(source, None, "gen").uid("g").map(Held()).name("held").uid("h")
    held.key_by(lambda i: i % 7).count().name("counts").uid("c").add_sink(lambda record: None)


async def stop_soon(job: Any, machine: Machine, events: Events) -> None:
    await trio.sleep(0.5)
    job.stop()


def handle_of(manifest: Manifest, uid: str) -> OperatorHandle:
    return next(handle for handle in manifest.handles if handle.uid == uid)


def with_handle(manifest: Manifest, uid: str, **values: Any) -> Manifest:
    """Return a manifest with other values in the handle of an operator."""
    handles = [replace(h, **values) if h.uid == uid else h for h in manifest.handles]
    return replace(manifest, handles=tuple(handles))


def with_keyed(inline: bytes) -> Callable[[Manifest], Manifest]:
    def craft(manifest: Manifest) -> Manifest:
        keyed = handle_of(manifest, "c").keyed
        assert keyed is not None and keyed.inline is not None
        return with_handle(manifest, "c", keyed=replace(keyed, inline=inline))

    return craft


def with_elements(manifest: Manifest) -> Manifest:
    state = handle_of(manifest, "h").operator_state
    assert state is not None and state.inline is not None
    inline = struct.pack(">I", 1) + b"\xc1"
    return with_handle(manifest, "h", operator_state=replace(state, inline=inline))


def with_log(manifest: Manifest) -> Manifest:
    data = frame(BATCH, b"\xc1 no batch")
    log = LogHandle("g", OWN_INPUT, 0, "rebalance", 1, len(data), data)
    return with_handle(manifest, "g", logs=(log,))


CRAFTS: list[tuple[Callable[[Manifest], Manifest], str]] = [
    (with_keyed(b"\xc1"), "the keyed state of operator 'counts', subtask 0, cannot be decoded"),
    (with_keyed(msgpack.packb([])), "the keyed state of operator 'counts', subtask 0"),
    (with_keyed(msgpack.packb([7])), "the keyed state of operator 'counts', subtask 0"),
    (with_keyed(msgpack.packb([[[b"\xc1", b"\x01"]]])), "'counts', .* state 'value'"),
    (with_keyed(msgpack.packb([[[b"\x01", b"\xc1"]]])), "'counts', .* state 'value'"),
    (with_elements, "the state 'newest' of operator 'held' in snapshot "),
    (with_log, "a record in flight to 'gen' cannot be decoded"),
    (lambda m: with_handle(m, "g", small=[7]), "the splits of source 'gen' cannot be decoded"),
    (lambda m: with_handle(m, "g", small=[[7, 7, 7]]), "the id of a split is 7"),
    (lambda m: replace(m, enumerators={"g": {}}), "the splits of source 'gen'"),
    (lambda m: replace(m, enumerators={"g": 7}), "the splits of source 'gen'"),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Store, Manifest]:
    """A job that was stopped, with all its state in the manifest."""
    folder = tmp_path_factory.mktemp("undecodable") / "job"
    config = JobConfig(name="j", checkpoint_dir=str(folder), checkpoint_interval_seconds=0.2)
    blob = program(build, config)
    ran = run_program(blob, script=stop_soon)
    assert ran.outcome.stopped, ran
    store = Store(folder)
    newest = store.newest()
    assert newest is not None
    return blob, store, newest


@pytest.mark.parametrize(("craft", "words"), CRAFTS)
def test_state_that_cannot_be_decoded_ends_the_job_with_advice(
    stopped: tuple[bytes, Store, Manifest], craft: Callable[[Manifest], Manifest], words: str
) -> None:
    blob, store, newest = stopped
    path: Path = store.paths.manifest(newest.number)
    path.write_bytes(encode_manifest(craft(newest)))
    ran: Ran = run_program(blob, options=JobSettings(resume="newest"), script=stop_soon)
    error = ran.outcome
    assert isinstance(error, PenstockError), ran
    assert error.recoverability is Recoverability.NON_RECOVERABLE
    with pytest.raises(PenstockError, match=words):
        raise error
    text = str(error)
    assert "resume from another snapshot" in text
    # At most the user's own frame is shown, in which the function asks for its state.
    assert text.count('  File "') == ("initialize_state" in text)
    assert str(newest.number) in text
    assert not any(event["event"] == "restarting" for event in ran.events)
