"""Reports from tables: a page, its data, and a bundle for a regulator.

- `fairness_report`: the page, its data, and the bundle for a regulator
- `measures`: the small tables that they show
- `sections`: findings, verdicts and explanations
- `plots`: plots as SVG
- `html_page`: pages that stand alone
"""
