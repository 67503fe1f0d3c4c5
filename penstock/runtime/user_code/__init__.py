"""Run user code: its errors, its logging, breakpoints and forks."""
