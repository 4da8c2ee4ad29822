"""Reports from tables: a page, its data, and files for a regulator.

- `fairness_report`: writes the page, its data and the files for a regulator
- `measures`: the small tables that they show
- `sections`: findings, verdicts and explanations
- `plots`: plots as SVG
- `html_page`: self-contained HTML pages
"""
