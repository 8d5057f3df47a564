"""Checks of questions, and whether they may be answered while records of the log are missing."""

from typing import Protocol

from analytics.audit.app import TimeRange
from protos.analytics.v1.analytics_pb2 import AuditActionsRequest, AuditAppRequest
from services.runtime.errors import InputError, NotFoundError, UnavailableError

_MAX_MSGID = 2**63
MAX_TIME_MS = 7_258_118_400_000
"""The year 2200."""

_MAX_LINES = 1000


class _MayLackRecords(Protocol):
    """A request that may be answered while records of the log are missing."""

    allow_behind: bool


def allowed(request: _MayLackRecords, behind: int) -> int:
    """Return how many records are missing, if the request allows that. UnavailableError: records are missing."""
    if behind and not request.allow_behind:
        raise UnavailableError(f"{_lag(behind)}; try again later, or see without them with --allow-behind")
    return behind


def time_range(request: AuditAppRequest | AuditActionsRequest) -> TimeRange:
    """Return the time range of a request for a page. InputError: it, or the limit of the page, is out of bounds."""
    if not 0 <= request.from_ms < request.to_ms < MAX_TIME_MS:
        raise InputError("from must be earlier than to, and both after 1970")
    check_limit(request.limit)
    return TimeRange(request.from_ms, request.to_ms)


def check_limit(limit: int) -> None:
    if not 0 < limit <= _MAX_LINES:
        raise InputError(f"limit must be from 1 to {_MAX_LINES}")


def check_msgid(msgid: int) -> None:
    if not 0 < msgid < _MAX_MSGID:
        raise InputError("msgid is not a message id")


def not_found(error: NotFoundError, behind: int) -> NotFoundError | UnavailableError:
    """Return the error, or UnavailableError while records are missing that may contain what was looked for."""
    return missing(behind) if behind else error


def missing(records: int) -> UnavailableError:
    return UnavailableError(f"{_lag(records)}; try again later")


def _lag(records: int) -> str:
    return f"analytics is {records} {'record' if records == 1 else 'records'} behind the event log"
