"""Handle the errors, the log records, the breakpoints and the forks of user code."""
