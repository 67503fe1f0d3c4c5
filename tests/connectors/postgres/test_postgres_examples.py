"""The example with PostgreSQL prints what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.testing.servers.postgres import PostgresServer
from tests.processes.harness import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "connectors"


def test_a_table_is_copied_while_it_changes(postgres_server: PostgresServer):
    command = [sys.executable, str(EXAMPLES / "postgres_copy.py"), "--database"]
    done = subprocess.run(
        [*command, postgres_server.create_database("copy")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "the copy has the rows of the table\n", done.stderr
