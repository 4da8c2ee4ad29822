"""What a user is told when the mistake is theirs."""


class UserError(Exception):
    """A user's mistake: one sentence that names the field, the value and the remedy."""


# The one exception of the room.


class FormatError(ValueError):
    """Bytes or values that a format does not allow; the message names the field, what was found and what is allowed."""
