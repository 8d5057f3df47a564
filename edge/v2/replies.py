"""Answers that several subjects of the v2 interface share."""

import datetime
from zoneinfo import ZoneInfo

from edge.core.answers import Reply
from edge.core.parsing.fields import Success, Text

TOKEN_NOT_FOUND = "token not found"  # noqa: S105


class Done(Reply, frozen=True):
    result: Success
    desc: Text


def time_text(moment_ms: int, zone: ZoneInfo) -> str:
    """Format a time, given in ms since 1970, as `YYYY-MM-DD HH:MM:SS` in the service's time zone."""
    return datetime.datetime.fromtimestamp(moment_ms // 1000, zone).strftime("%Y-%m-%d %H:%M:%S")
