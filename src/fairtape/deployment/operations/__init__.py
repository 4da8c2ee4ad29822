"""Operating a deployment: machine checks, drills, operator orders, plan changes."""
