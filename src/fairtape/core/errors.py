"""What a user is told when the mistake is theirs."""


class Complaint(Exception):
    """A user's mistake: one sentence that names the field, the value and the remedy."""
