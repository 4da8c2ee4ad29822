"""The reformation server (X_R): leadership, the primary loop, secondary loops, planned changes. Pure."""
