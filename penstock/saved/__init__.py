"""Snapshots as data: their content read from outside, without the code of the job.

A snapshot is decoded by the codec that wrote it. So this package stands above `penstock.snapshot`,
which knows no codec, and above `penstock.runtime`, of which it uses `serialization` only.
"""
