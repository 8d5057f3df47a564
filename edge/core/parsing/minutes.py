"""Times in requests: `%Y-%m-%d %H:%M` in the service's time zone; the numbers need no zeros before them."""

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from services.runtime.errors import InputError

MINUTE_MS = 60_000
_MINUTE = re.compile(r"\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}", re.ASCII)


def minute_ms(text: str, zone: ZoneInfo, at: str) -> int:
    """Return milliseconds since 1970. InputError: another format, or no such day or time."""
    try:
        moment = datetime.strptime(text if _MINUTE.fullmatch(text) else "", "%Y-%m-%d %H:%M").replace(tzinfo=zone)
        return int(moment.timestamp()) * 1000
    except (ValueError, OverflowError):
        raise InputError(f"{at} must be a time like 2030-01-31 18:05") from None
