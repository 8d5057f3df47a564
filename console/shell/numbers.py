"""Whole numbers that people and addresses give as text."""

import falcon

MAX_MSGID = 2**63 - 1
MAX_TIME_MS = 2**62

_MAX_DIGITS = 19


def whole_number(text: str, most: int) -> int | None:
    """Return the number that ASCII digits write; None for another text, or if the number is above `most`."""
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= most else None


def message_id(text: str) -> int:
    """Return the message id in a path. HTTP 404: the text is no number."""
    number = whole_number(text, MAX_MSGID)
    if not number:
        raise falcon.HTTPNotFound
    return number
