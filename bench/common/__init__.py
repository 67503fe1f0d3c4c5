"""Run jobs for benchmarks and report figures."""
