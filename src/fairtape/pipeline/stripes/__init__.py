"""Stripe planning from the history of rates: rates, limits, packing, evaluation, plan files."""
