"""Take over the workers of a JobManager that has died.

`rejoin_server.py` receives the offers of the workers, and `decision.py` decides whether all of them
are intact. If there is any doubt, the job restarts from its newest snapshot with new workers.
"""
