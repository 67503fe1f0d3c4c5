"""Processes of a simulated machine are paused, and their connections cut, as real ones would be."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from penstock.testing.simulation.files import HookedDiskFiles, UnsyncedChanges, damage_newest
from penstock.testing.simulation.machine import Machine, Process
from penstock.testing.simulation.scheduler import seed_scheduler


def on_machine(script: Callable[[Machine], Awaitable[None]], seed: int = 1) -> Machine:
    """Run a script beside the processes of a machine."""
    machines = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            machine = Machine(random.Random(seed), nursery)
            machines.append(machine)
            try:
                await script(machine)
            finally:
                machine.close()
                await trio.sleep(1)
                nursery.cancel_scope.cancel()

    seed_scheduler(seed)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return machines[0]


def ticking(machine: Machine, name: str) -> tuple[Process, list[float]]:
    """Start a process that notes the time every 10 ms, from two tasks."""
    process, ticks = machine.process(name), []

    async def tick() -> None:
        while True:
            await trio.sleep(0.01)
            ticks.append(round(trio.current_time(), 3))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            nursery.start_soon(tick)

    machine.start(process, main)
    return process, ticks


def test_a_paused_process_does_nothing_and_then_finds_its_deadlines_passed():
    async def script(machine: Machine) -> None:
        paused, ticks = ticking(machine, "paused")
        _, others = ticking(machine, "other")
        await trio.sleep(0.025)
        machine.pause(paused, 0.5)
        await trio.sleep(0.4)
        assert ticks == [0.01, 0.01, 0.02, 0.02] and others[-1] == 0.42
        await trio.sleep(0.11)
        assert ticks[4:] == [0.525, 0.525, 0.535, 0.535]

    on_machine(script)


def test_threads_of_a_paused_process_stop_too():
    async def script(machine: Machine) -> None:
        process, done = machine.process("paused"), []

        async def main() -> None:
            system = machine.system(process)
            while True:
                await system.offload(lambda: done.append(trio.current_time()))

        machine.start(process, main)
        await trio.sleep(0.1)
        machine.pause(process, 1.0)
        await trio.sleep(0.01)
        before = len(done)
        await trio.sleep(0.9)
        assert len(done) == before > 0
        await trio.sleep(0.2)
        assert len(done) > before

    on_machine(script)


def test_a_kill_ends_a_paused_process_but_not_one_that_it_does_not_reach():
    async def script(machine: Machine) -> None:
        killed, _ = ticking(machine, "killed")
        machine.pause(killed, 1.0)
        killed.kill()
        await killed.ended.wait()
        assert killed.dead and trio.current_time() < 0.1
        lost, ticks = ticking(machine, "lost")
        await trio.sleep(0.05)
        machine.pause(lost, 1.0, unreachable=True)
        assert lost.unreachable and lost.replaced
        await trio.sleep(1.1)
        assert not lost.unreachable and ticks[-1] > 1.0

    on_machine(script)


@pytest.mark.parametrize("one_way", [True, False])
@pytest.mark.parametrize("heals", [True, False])
def test_a_cut_connection_carries_nothing_and_breaks_or_goes_on(one_way: bool, heals: bool):
    async def script(machine: Machine) -> None:
        received: dict[str, list[float]] = {"server": [], "client": []}
        broken: list[float] = []

        async def talk(name: str, stream: trio.abc.Stream) -> None:
            async def say() -> None:
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.01)

            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(say)
                    while await stream.receive_some():
                        received[name].append(trio.current_time())
            except* trio.BrokenResourceError:
                broken.append(trio.current_time())

        server, client = machine.process("server"), machine.process("client")
        address = trio.Event()

        async def serve() -> None:
            async with trio.open_nursery() as nursery:
                transport = machine.system(server).transport
                await transport.listen("here", lambda stream: talk("server", stream), nursery)
                address.set()

        async def connect() -> None:
            await address.wait()
            stream = await machine.system(client).transport.connect(f"sim:{server.pid}/here")
            await talk("client", stream)

        machine.start(server, serve)
        machine.start(client, connect)
        await trio.sleep(0.3)
        began = trio.current_time()
        assert machine.cut(0.5, one_way=one_way, heals=heals)
        await trio.sleep(1.0)
        meanwhile = [
            name
            for name, times in received.items()
            if any(began + 0.1 < time < began + 0.5 for time in times)
        ]
        assert len(meanwhile) == one_way
        later = [name for name, times in received.items() if times[-1] > began + 0.6]
        assert len(later) == (2 if heals else 0)
        assert len(broken) == (0 if heals else 2)
        if not heals:
            assert machine.cut(0.1, one_way=one_way, heals=heals) == ""

    assert not on_machine(script).crashes


def test_a_crash_loses_no_more_than_what_was_not_synced(tmp_path: Path):
    root, lost = tmp_path / "root", set()
    for seed in range(40):
        root = tmp_path / f"root{seed}"
        (tmp_path / f"undone{seed}").mkdir()
        root.mkdir()
        files = HookedDiskFiles()
        files.hook = lambda operation, path: None
        files.unsynced = UnsyncedChanges(tmp_path / f"undone{seed}")
        files.write(root / "durable", b"durable")
        files.sync(root / "durable")
        files.sync(root)
        files.write(root / "named", b"12345")
        files.sync(root)
        files.write(root / "durable", b"changed")
        files.write(root / "new", b"new")
        files.sync(root / "new")
        files.link(root / "new", root / "linked")
        files.make_folder(root / "folder")
        lost.update(files.unsynced.crash(random.Random(seed)))
        durable = (root / "durable").read_bytes()
        assert durable == b"durable" or b"changed".startswith(durable)
        assert b"12345".startswith((root / "named").read_bytes())
        for name in ("new", "linked"):
            assert not (root / name).exists() or (root / name).read_bytes() == b"new"
        assert not list((tmp_path / f"undone{seed}").iterdir())
    assert lost == {
        "content of durable",
        "content of named",
        "name folder",
        "name linked",
        "name new",
    }


def test_damage_is_repaired(tmp_path: Path):
    assert damage_newest(tmp_path, random.Random(1)) is None
    folder = tmp_path / "checkpoints" / "000003"
    folder.mkdir(parents=True)
    (folder / "manifest").write_bytes(b"manifest")
    damage = damage_newest(tmp_path, random.Random(1))
    assert damage is not None and str(damage) == "file manifest of snapshot 3"
    assert (folder / "manifest").read_bytes() != b"manifest"
    damage.repair()
    assert (folder / "manifest").read_bytes() == b"manifest"
