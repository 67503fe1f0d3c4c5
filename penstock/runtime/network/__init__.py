"""Move records and barriers between tasks: channels, gates and partitioners."""
