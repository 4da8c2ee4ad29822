"""Errors that are reported to users in one sentence, without a traceback."""


class UserError(Exception):
    """A user's mistake: one sentence that names the field, the value and the remedy."""


class FormatError(ValueError):
    """Bytes or values that a format does not allow. The message names the field, the value and what is allowed."""
