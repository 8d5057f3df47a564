"""Cursors of pages: the `next` of one page is the `cursor` of the following one."""

from edge.console.numbers import whole_number
from services.runtime.errors import InputError

MAX_ENTRIES = 1_000_000


def after(cursor: str, most: int = MAX_ENTRIES) -> int:
    """Return the number that a cursor is; 0 for the first page. InputError: no page has returned this cursor."""
    number = whole_number(cursor or "0", most)
    if number is None:
        raise InputError("cursor: give the `next` of the page before, or nothing")
    return number
