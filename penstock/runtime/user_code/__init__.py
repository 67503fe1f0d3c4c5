"""Run the code of users: errors, log records, breakpoints, forks and asynchronous calls."""
