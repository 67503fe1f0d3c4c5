"""Unix sockets: where they are put, and where nothing can be."""

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from penstock.dataflow.errors import StoreError
from penstock.runtime.system import unix_sockets
from penstock.runtime.system.transport import SocketTransport
from penstock.runtime.system.unix_sockets import MAX_SOCKET_PATH, UnixSockets, socket_name
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder


@contextlib.contextmanager
def _bound(sockets: UnixSockets, name: str) -> Iterator[str]:
    bound, path = sockets.bind(name)
    with bound:
        bound.listen(1)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(socket_name(path))
        yield path


def _writable(monkeypatch: pytest.MonkeyPatch, *parents: Path) -> None:
    """Let folders be made only in the first of these, and in the system's if it is there."""

    def make(kind: str, parent: str | None = None) -> TemporaryFolder:
        if parent == "/tmp" or not parents:
            raise StoreError("Read-only file system", parent)
        return TemporaryFolder(kind, str(parents[0]))

    monkeypatch.setattr(unix_sockets, "TemporaryFolder", make)


def test_the_sockets_of_a_job_lie_in_one_folder_that_the_first_process_removes():
    manager = UnixSockets()
    with _bound(manager, "jm.1") as path:
        worker = UnixSockets(beside=path)
        with _bound(worker, "w0.1") as other:
            assert Path(other).parent == Path(path).parent
        worker.close()
        assert Path(path).parent.is_dir()
    manager.close()
    assert not Path(path).parent.exists()


def test_sockets_of_an_ended_attempt_are_removed_and_no_others():
    manager = UnixSockets()
    with _bound(manager, "gang") as gang, _bound(manager, "jm.9") as path:
        with _bound(UnixSockets(beside=path), "w0.9") as killed:
            assert Path(path).is_socket()
        manager.remove(9)
        with (
            _bound(manager, "jm.73") as again,
            _bound(UnixSockets(beside=again), "w0.73") as worker,
        ):
            left = {str(each) for each in Path(again).parent.iterdir()}
            assert left == {gang, again, worker}
            assert killed not in left
    manager.close()


def test_a_folder_that_was_removed_is_made_again():
    manager = UnixSockets()
    with _bound(manager, "jm.1") as path:
        shutil.rmtree(Path(path).parent.parent)
        with _bound(manager, "jm.2") as again:
            assert Path(again).is_socket() and Path(again).parent != Path(path).parent
    manager.close()
    assert not Path(again).parent.exists()


def test_sockets_go_elsewhere_where_the_usual_folder_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
):
    with TemporaryFolder("test") as folder:
        _writable(monkeypatch, folder.path)
        manager = UnixSockets()
        with _bound(manager, "jm.1") as path:
            assert folder.path in Path(path).parents
        manager.close()
        assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("why", ["unwritable", "too long"])
def test_sockets_have_no_path_where_no_short_one_can_be_written(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    _writable(monkeypatch, *([long] if why == "too long" else []))

    async def main() -> None:
        manager = SocketTransport()
        async with trio.open_nursery() as nursery:

            async def serve(stream: trio.abc.Stream) -> None:
                await stream.send_all(b"hello")

            address = await manager.listen("jm.1", serve, nursery)
            assert address.startswith("unix:@penstock-") and len(address) < MAX_SOCKET_PATH
            worker = SocketTransport(beside=address)
            assert (await worker.listen("w0.1", serve, nursery)).startswith(
                address.removesuffix("jm.1")
            )
            async with await worker.connect(address) as stream:
                assert await stream.receive_some(5) == b"hello"
            nursery.cancel_scope.cancel()
        manager.close()

    trio.run(main)
    assert list(long.iterdir()) == []


def test_an_error_names_all_places_where_no_socket_can_be(monkeypatch: pytest.MonkeyPatch):
    _writable(monkeypatch)
    monkeypatch.setattr(unix_sockets.sys, "platform", "darwin")
    with pytest.raises(StoreError, match=r"set TMPDIR .*Read-only file system \[/tmp\]; Read-only"):
        UnixSockets().bind("jm.1")
