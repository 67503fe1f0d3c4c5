"""What a job says about its guarantees when it starts."""

from __future__ import annotations

import socket
import threading

from penstock import StreamExecutionEnvironment
from penstock.dataflow.program import RunOptions, run_options


def test_a_source_that_cannot_be_read_again_is_noted_when_the_job_starts() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"a\nb\na\n")

    thread = threading.Thread(target=serve)
    thread.start()
    env = StreamExecutionEnvironment.get_execution_environment()
    lines = env.socket_text_stream("127.0.0.1", server.getsockname()[1])
    notes: list[str] = []

    def listen(event: dict[str, str]) -> None:
        if event["event"] == "note":
            notes.append(event["text"])

    with server, run_options(RunOptions(progress=listen)):
        assert list(lines.execute_and_collect()) == ["a", "b", "a"]
    thread.join()
    assert len(notes) == 1
    assert "'Source: Socket' cannot be read again" in notes[0]
