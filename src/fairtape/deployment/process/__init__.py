"""The processes of a deployment: nodes, edge, gateway, arbiter, and their supervision."""
