"""Random jobs on the simulated cluster: drawn, disturbed, resumed, and their output counted.

* `functions.py`: the functions with state that the jobs consist of.
* `sources.py`: sources that end, and one that does not.
* `shapes.py`: what a job does with its input, each shape with the output that it must have.
* `job.py`: draws a job: its sources, its shape, its sinks.
* `settings.py`: draws the modes and the settings of each run.
* `runner.py`: runs a case to its end, with the faults of `penstock.testing.simulation`.
* `caches.py`: programs with a cached stream, which are executed several times.
* `tally.py`: adds up cases, and says what they were worth.

`python -m tests.simulation.random_jobs` runs many cases, and one of them again by its seed.
"""
