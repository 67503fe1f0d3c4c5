"""`SocketSource` against a listening socket on loopback."""

import socket
import threading

import pytest

from penstock.connectors import SocketSource
from penstock.connectors.formats import Json
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import Read, ReaderContext
from tests.processes.harness import PATIENCE


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)
        yield listening


@pytest.fixture
def connect(server):
    """Make a reader of the server; the server's end of the connection is made when it reads."""
    readers = []

    def make(**arguments):
        source = SocketSource("127.0.0.1", server.getsockname()[1], **arguments)
        reader = source.create_reader(ReaderContext("uid", 0, 1))
        reader.open(source.create_enumerator(1).next_split(0), None)
        readers.append(reader)
        return reader

    yield make
    for reader in readers:
        reader.close()


def send(server, *pieces):
    """Accept, send pieces, close; in a thread, since the reader connects when it reads."""

    def run():
        with server.accept()[0] as connection:
            for piece in pieces:
                connection.sendall(piece)

    threading.Thread(target=run, daemon=True).start()


def read_all(reader, max_records=100):
    records, finished = [], False
    while not finished:
        batch, _, finished, *_ = reader.read(max_records)
        assert len(batch) <= max_records
        records += batch
    return records


def test_lines_are_cut_decoded_and_end_with_the_connection(server, connect):
    send(server, b"one\r\ntw", "o é\n\nla".encode(), b"st")
    assert read_all(connect(), 1) == ["one", "two é", "", "last"]


def test_another_delimiter_may_have_several_characters(server, connect):
    send(server, b"a\n-", b"-b--")
    assert read_all(connect(delimiter="--")) == ["a\n", "b"]


def test_bytes_that_cannot_be_decoded_are_told_with_the_peer(server, connect):
    send(server, b"\xff\n")
    with pytest.raises(JobError, match=r"text from 127\.0\.0\.1:\d+ cannot be decoded"):
        read_all(connect())
    send(server, b"\xff\n")
    assert read_all(connect(errors="replace")) == ["\ufffd"]


def test_messages_of_a_schema_are_decoded_and_bad_ones_have_their_number(server, connect):
    pytest.importorskip("msgspec")
    send(server, b'{"a": 1}\r\n\n[\n', b"2\n3")
    reader = connect(schema=Json(on_error="side_output"))
    records, bad, finished = [], [], False
    while not finished:
        read = reader.read(2)
        records, bad, finished = records + read.records, bad + [*read.side_output], read.finished
    assert records == [{"a": 1}, 2, 3]
    ((_, one),) = bad
    assert one.message == b"["
    assert one.place.endswith(", message 3")
    with pytest.raises(GraphError, match="schema of a socket source is a DeserializationSchema"):
        SocketSource("localhost", 1, schema=Json)
    assert SocketSource("localhost", 1).side_output_tags == ()


def test_closing_wakes_a_read_that_waits_for_the_peer(server, connect):
    reader = connect()
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(reader.read(10)), daemon=True)
    thread.start()
    with server.accept()[0] as peer:
        peer.sendall(b"half a rec")
        reader.close()
        thread.join(60)
    assert outcome == [Read([], 0)]


def test_a_refused_connection_is_told_with_host_and_port(server, connect):
    reader = connect(retries=2, retry_seconds=0)
    port = server.getsockname()[1]
    server.close()
    with pytest.raises(JobError, match=rf"cannot connect to 127\.0\.0\.1:{port} \(3 attempts\)"):
        reader.read(1)


def test_closing_ends_endless_attempts_to_connect(server, connect):
    reader = connect(retries=-1, retry_seconds=3600)
    server.close()
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(reader.read(1)), daemon=True)
    thread.start()
    reader.close()
    thread.join(60)
    assert outcome == [Read([], 0)]


def test_it_says_that_it_cannot_be_rewound():
    assert not SocketSource("localhost", 9999).rewindable


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": ""},
        {"port": 0},
        {"port": "80"},
        {"delimiter": ""},
        {"retries": -2},
        {"encoding": "no-such"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(GraphError):
        SocketSource(**{"host": "localhost", "port": 9999, **arguments})
