"""The source side of the ring: transmission, retention of acknowledged blocks, flow control. Pure."""
