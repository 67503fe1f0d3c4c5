"""The storage of entries besides memory: rows or blocks of a database, and its checkpoints."""
