"""Counts the devices of a push's audience by state. Each device has one state, so the counts add up to the audience.

A device's state is the first one in the push's precedence for which the log has an outcome, wherever that is: a receipt
takes precedence over any final outcome, however late it comes. Where the push was cancelled, has finished or has failed
in a partition, devices without such an outcome are cancelled, expired or failed; elsewhere they are sent or pending.

If the push's outcomes have outlived their retention, every device is unknown.

In a list of devices each message id has an audience of its own: a device counts once for each of its message ids.
"""

from collections.abc import Iterator, Sequence

from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import expired_outcome_days
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import StateCount
from services.domain.recorded_reasons import OutcomesForgotten

STATES = ("pending", "sent", "received", "shown", "clicked", "failed", "dropped", "cancelled", "expired")
"""In the order of answers."""

UNKNOWN = "unknown"

_REACHED = ("clicked", "shown", "received")
ENDED = ("failed", "dropped", "cancelled", "expired")


async def state_counts(
    clickhouse: ClickHouse, appkey: str, push: int, platform: str, *, is_listed: bool, first: int, last: int
) -> list[StateCount]:
    """Count devices of message ids `first` to `last` by state and reason; the most frequent reason comes first."""
    parameters = {
        **{"appkey": appkey, "push": push, "is_listed": is_listed, "first": first, "last": last},
        "ended": list(ENDED),
    }
    query = sql(__package__, "state_counts", sets=state_sets(platform), reasons=sql(__package__, "state_reasons"))
    rows = await clickhouse.rows(query, parameters)
    counts = [StateCount(state=state, reason=reason, devices=devices) for state, reason, devices in rows]
    return sorted_counts(counts, await expired_outcome_days(clickhouse, appkey, push) if counts else 0)


def sorted_counts(counts: Sequence[StateCount], expired_days: int) -> list[StateCount]:
    """Return the counts in the order of STATES; one for all devices if the outcomes have outlived `expired_days`."""
    if counts and expired_days:
        reason = str(OutcomesForgotten(expired_days))
        return [StateCount(state=UNKNOWN, reason=reason, devices=sum(count.devices for count in counts))]
    return sorted(counts, key=lambda count: STATES.index(count.state))


def state_precedence(platform: str) -> tuple[str, ...]:
    """Return states in their precedence. iOS devices acknowledge nothing, so there `sent` precedes final outcomes."""
    return (*_REACHED, "sent", *ENDED) if platform == "ios" else (*_REACHED, *ENDED)


def state_sets(platform: str) -> str:
    """Return the beginning of a query about a push's devices by state: its `WITH`, whose last table is `states`."""
    precedence = state_precedence(platform)
    unions = (
        f"groupBitmapMergeStateIf(devices, event IN {precedence[:rank]}) AS until_{rank}"
        for rank in range(1, len(precedence) + 1)
    )
    return sql(
        __package__,
        "state_sets",
        unions=", ".join(unions),
        states=", ".join(_pairs(precedence)),
        events=sql(__package__, "push_events"),
    )


def _pairs(precedence: tuple[str, ...]) -> Iterator[str]:
    """Yield pairs of a state and its set of devices; the sets are disjoint, and their union is the audience."""
    yield f"('{precedence[0]}', bitmapAnd(audience, until_1))"
    for rank, state in enumerate(precedence[1:], 2):
        yield f"('{state}', bitmapAnd(audience, bitmapAndnot(until_{rank}, until_{rank - 1})))"
    left = f"bitmapAndnot(audience, until_{len(precedence)})"
    yield f"(if(ending = '', 'sent', ending), bitmapAnd({left}, were_sent))"
    yield f"(if(ending = '', 'pending', ending), bitmapAndnot({left}, were_sent))"
