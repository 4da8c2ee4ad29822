"""The receiver side of the ring: buffering, ordering, recovery, acknowledgment and release. Pure."""
