"""The two layouts of tables, which capture and write the entries of a table."""
