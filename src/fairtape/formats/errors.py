"""The one exception of the room."""


class FormatError(ValueError):
    """Bytes or values that a format does not allow; the message names the field, what was found and what is allowed."""
