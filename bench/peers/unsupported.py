"""What a peer raises where it has no such call. Of all files of this folder the lowest."""


class Unsupported(Exception):
    """The text says what is missing."""
