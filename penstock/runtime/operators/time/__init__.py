"""Give records their event times, and generate watermarks.

`timestamped_stream` does it for one stream of records: a split of a source, or the input of
`assign_timestamps_and_watermarks`. `source_watermarks` combines the splits of a source task.
"""
