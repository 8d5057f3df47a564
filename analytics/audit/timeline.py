"""Entries of a timeline, their order, and their text."""

from collections.abc import Iterable
from zoneinfo import ZoneInfo

from analytics.audit.details import channels, reasons
from analytics.audit.details_text import details_text
from protos.analytics.v1.analytics_pb2 import TimelineEntry
from protos.analytics.v1.details_pb2 import Detail
from services.domain.recorded_reasons import FixedReason, RefusedUntilExpiry, parsed_reason
from services.domain.statistics_rows import APPLE

_ORDER = {
    event: rank
    for rank, event in enumerate(
        (
            *("registered", "task scheduled", "app paused", "all apps paused", "task paused"),
            *("app resumed", "all apps resumed", "task expired"),
            *("task fell due", "task sent", "task failed", "task cancelled"),
            *("command", "audience"),
            *(
                "connected",
                "claimed",
                "returned",
                "sent",
                "handed_over",
                "received",
                "shown",
                "clicked",
                "dismissed",
                "failed",
                "dropped",
            ),
            *("cancel command", "push cancelled", "cancelled", "expired", "finished", "push failed"),
            "content erased",
        )
    )
}


def entry(
    event: str, first_ms: int, last_ms: int | None = None, count: int = 1, details: Iterable[Detail] = ()
) -> TimelineEntry:
    """Return an entry of an event that happened once, or `count` times up to `last_ms`; times in ms since 1970 UTC."""
    last = first_ms if last_ms is None else last_ms
    return TimelineEntry(first_ms=first_ms, last_ms=last, event=event, count=count, details=details)


def of_message(event: str, time_ms: int, msgid: int, reason: str = "", *, is_push: bool = False) -> TimelineEntry:
    """Return an entry of one device about one of its messages, or about a push; time in ms since 1970 UTC."""
    about = Detail(push=msgid) if is_push else Detail(message=msgid)
    made = entry(event, time_ms, details=[about, *reasons(reason)])
    made.msgid, made.reason = msgid, reason
    return made


def of_outcome(
    kind: str, time_ms: int, msgid: int, reason: str, via: str, *, simulated: bool, is_ios: bool = False
) -> TimelineEntry:
    """Return the entry of one device about an outcome of a message; `via` and `simulated` as in `deliveries`."""
    made = of_message(kind, time_ms, msgid, reason)
    is_apples = simulated or (is_ios and _is_answer(kind, reason))
    made.channel, made.simulated = via or (APPLE if is_apples else ""), simulated
    made.details.extend(channels(made.channel, simulated=simulated))
    return made


def _is_answer(kind: str, reason: str) -> bool:
    """Whether a push service was asked for this outcome."""
    parsed = parsed_reason(reason)
    if kind == "expired":
        return isinstance(parsed, RefusedUntilExpiry)
    return kind == "sent" or (kind == "failed" and not isinstance(parsed, FixedReason))


def with_texts(entries: Iterable[TimelineEntry], zone: ZoneInfo) -> list[TimelineEntry]:
    """Return the entries, each with the English text of its details; times are in the zone."""
    worded = list(entries)
    for one in worded:
        one.detail = details_text(one.details, zone)
    return worded


def by_time(entries: Iterable[TimelineEntry], zone: ZoneInfo) -> list[TimelineEntry]:
    """Return the entries with their texts, by time; those of the same time in the order in which such events happen."""
    ordered = sorted(entries, key=lambda e: (e.first_ms, _ORDER.get(e.event.removeprefix("message "), len(_ORDER))))
    return with_texts(ordered, zone)
