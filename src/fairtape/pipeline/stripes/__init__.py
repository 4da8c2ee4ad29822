"""Stripe plans from a history of rates.

- `study`: from a history and a plan request to a stripe plan
- `rates`: rates and likeness of symbols, on Spark
- `burst_model`: seconds of a day from daily volumes
- `overrun_risk`: the probability that a stripe exceeds its rate
- `packing`: symbols into stripes
- `evaluation`: a plan on held-back history, beside other methods
- `plan_report`: the report of a plan
"""
