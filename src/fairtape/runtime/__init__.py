"""The outside world: UDP, clock, one timer, weather, journal files. Runs any machine, knows none."""
