"""Rings of real processes: what their processes must agree on, and how one process takes its seat in it."""
