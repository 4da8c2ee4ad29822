"""Reconciliation on Spark (`reconcile`): the proof that the journals of all sites hold one sequence."""
