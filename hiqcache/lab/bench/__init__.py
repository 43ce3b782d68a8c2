"""Benchmarks: correctness first, then time beside a limit measured in the same run."""
