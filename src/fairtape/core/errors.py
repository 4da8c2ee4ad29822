"""What a user is told when the mistake is theirs."""


class UserError(Exception):
    """A user's mistake: one sentence that names the field, the value and the remedy."""
