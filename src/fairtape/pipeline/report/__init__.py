"""Reports from tables: a page, its data, and a bundle for a regulator.

- `report`: the page, its data and the bundle, and the measures that they show
- `sections`: findings, verdicts and explanations
- `plots`: plots as SVG
- `html_page`: pages that stand alone
- `regulator`: the bundle for a regulator
"""
