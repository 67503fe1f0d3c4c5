"""Measure CheckMate's queries, also the cyclic one, while a worker is killed."""
