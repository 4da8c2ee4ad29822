"""Operating a deployment: creation, checks, drills and commands.

- `draft`: new deployments: `fairtape init`
- `profile_measurement`: which profile this machine sustains, for `fairtape init`
- `doctor`: checks of a machine, and whether it can run a deployment
- `drills`: faults injected into a running deployment, and their effects
- `operator`: commands to the reformation servers, changes of the stripe plan
"""
