"""Event times, watermarks and timers of operators.

`timestamped_stream.py` gives the records of one stream their event times, and generates watermarks.
Such a stream is a split of a source, or the input of `assign_timestamps_and_watermarks`.
`source_watermarks.py` combines the splits of a source task. `operator_timers.py` has the timers of
an operator, which are part of its keyed state, and `timer_firing.py` calls `on_timer` of functions.
"""
