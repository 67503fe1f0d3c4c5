"""Turn the state of jobs into JSON, and say which schemas it has."""
