"""Following the journals of a deployment: site selection, failover, floor replay."""
