"""A database for each test, and SQL in it."""

import psycopg
import pytest


@pytest.fixture
def database(postgres_server, request):
    return postgres_server.create_database(request.node.name)


@pytest.fixture
def run(database):
    """Run SQL in the database of the test."""

    def run_sql(statement, values=None):
        settings = "-c timezone=UTC"
        with psycopg.connect(database, autocommit=True, options=settings) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else None

    return run_sql
