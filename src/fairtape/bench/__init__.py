"""Benchmarks: commands that print ratios from one run, beside what they are compared with."""
