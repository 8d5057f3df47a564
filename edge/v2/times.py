"""Times in answers of the v2 interface."""

import datetime
from zoneinfo import ZoneInfo


def time_text(moment_ms: int, zone: ZoneInfo) -> str:
    """Format a time, given in ms since 1970, as `YYYY-MM-DD HH:MM:SS` in the service's time zone."""
    return datetime.datetime.fromtimestamp(moment_ms // 1000, zone).strftime("%Y-%m-%d %H:%M:%S")
