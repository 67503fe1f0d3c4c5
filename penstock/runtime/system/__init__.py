"""Give the runtime its clock, connections, processes and limits, as parameters."""
