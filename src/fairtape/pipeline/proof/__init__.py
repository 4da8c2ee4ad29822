"""Reconciliation on Spark: proof that the journals of all sites hold one sequence."""
