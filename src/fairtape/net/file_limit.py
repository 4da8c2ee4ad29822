"""How many files and connections this process may have open: as many as it needs, where the system lets it."""

import resource


def allow_files(needed: int) -> int:
    """Raise this process's own limit to what is needed, as far as that goes; how many files it may open then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
