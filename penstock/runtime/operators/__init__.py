"""Apply the functions of a program to batches of records."""
