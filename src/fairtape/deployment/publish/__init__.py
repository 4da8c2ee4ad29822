"""Publishing into a ring as one of its sources: targets, queues, pacing, revisions, floor requests."""
