"""Reports from tables: sections, plots, the HTML page, and the bundle for a regulator."""
