"""Cold state in SQLite: the database and its change files."""
