"""Benchmarks: run untimed as tests in CI, timed by `make bench`."""
