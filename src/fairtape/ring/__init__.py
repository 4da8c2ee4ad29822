"""RMP and TRMP: transmission, token, recovery, ordering, resilience, release and repair. Pure."""
