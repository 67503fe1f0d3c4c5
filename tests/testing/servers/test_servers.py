"""Servers for tests: start, stop, kill, share."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.servers import Server, ServerError
from penstock.testing.servers.server import accepts_connections
from penstock.testing.servers.shared import shared_server
from tests.processes.harness import wait_until


class WebServer(Server):
    """Serves the files of its folder, with Python's own server."""

    program = "python3"
    package = "install Python"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "http.server", str(self.port), "--bind", self.host]

    def is_ready(self) -> bool:
        return accepts_connections(self.host, self.port)


class MissingServer(WebServer):
    program = "no-such-program"
    package = "apt-get install no-such-program"


class EndingServer(WebServer):
    def command(self) -> list[str]:
        return [sys.executable, "-c", "print('the port is taken'); raise SystemExit(3)"]


def test_a_server_answers_until_it_is_stopped_and_again_after_a_start(tmp_path):
    with WebServer(tmp_path) as server:
        assert server.is_ready()
        server.kill()
        assert not server.is_ready() and server.pid is None
        server.start()
        assert server.is_ready()
    assert not server.is_ready()


def test_a_server_that_is_missing_says_what_to_install(tmp_path):
    with pytest.raises(ServerError, match="apt-get install no-such-program"):
        MissingServer(tmp_path).start()


def test_a_server_that_ends_at_once_shows_the_end_of_its_log(tmp_path):
    with pytest.raises(ServerError, match="ended at once: the port is taken"):
        EndingServer(tmp_path).start()


def test_a_shared_server_runs_once_and_ends_with_its_owner(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        first = shared_server(WebServer, tmp_path, owner.pid)
        second = shared_server(WebServer, tmp_path, owner.pid)
        assert first.port == second.port and first.is_ready()
    wait_until(lambda: not first.is_ready(), "the server has ended")
    wait_until(lambda: not Path(first.folder).exists(), "its data is removed")


def test_a_shared_server_that_does_not_start_says_why_to_each_test(tmp_path):
    for _ in range(2):
        with pytest.raises(ServerError, match="the port is taken"):
            shared_server(EndingServer, tmp_path, 1)
