"""Numbers in sentences."""


def counted(number: int, noun: str) -> str:
    """So many of something: `1 site`, `2 sites`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
