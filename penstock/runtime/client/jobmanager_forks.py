"""Start the JobManagers of a program: the first one as a new process, later ones as forks.

A new interpreter needs about 0.3 s of processor time to import what a JobManager needs, and its
fork server 0.1 s for what workers need. A program that executes a second job is likely to execute
more, as a notebook or a test does. So it then starts a process that has imported all of this, and
forks from it. A program with one job has no such process.
"""

from __future__ import annotations
