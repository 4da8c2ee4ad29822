"""Equal runs everywhere: property tests draw the same examples each time and never fail for being slow."""

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")
