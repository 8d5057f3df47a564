"""The devices of a push's audience by state: counts, counts by the values of a category, and pages of devices.

A device's state is the first one in the push's precedence for which the log has an outcome, wherever that is: a receipt
takes precedence over any final outcome, however late it comes. Where the push was cancelled, has finished or has failed
in a partition, devices without such an outcome are cancelled, expired or failed; elsewhere they are sent or pending.

If the push's outcomes have outlived their retention, every device is unknown.

In a list of devices each message id has an audience of its own: a device counts once for each of its message ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from analytics.audit.find_push import find_planned, no_such_push
from analytics.store.clickhouse import ClickHouse
from analytics.store.device_tokens import device_tokens
from analytics.store.retention import expired_outcome_days
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import (
    Category,
    DeviceOfPush,
    ListPushDevicesRequest,
    ListPushDevicesResponse,
    PushStatesRequest,
    PushStatesResponse,
    StateCount,
    ValueStates,
)
from services.domain.recorded_reasons import OutcomesForgotten
from services.errors import InputError

STATES = ("pending", "sent", "handed_over", "received", "shown", "clicked", "failed", "dropped", "cancelled", "expired")
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
    """Return states in their precedence.

    A message that Apple or a channel has accepted counts as that, and not by a later final outcome: it may still
    arrive.
    """
    return (*_REACHED, "sent" if platform == "ios" else "handed_over", *ENDED)


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


# Counts the devices of a broadcast or multicast by the values of a category, each by state and reason.
#
# A device counts under the value that it had when the start of the push was ingested, as in statistics, so the values
# add up to the audience.


async def states_by_value(clickhouse: ClickHouse, request: PushStatesRequest) -> PushStatesResponse:
    """Return the counts of each value. InputError: there is no such category. NotFoundError: there is no such push."""
    category = category_column(request.category)
    push = await find_planned(clickhouse, request.msgid)
    if push is None:
        raise no_such_push(request.msgid)
    parameters: Mapping[str, Any] = {
        **{"appkey": push.appkey, "push": push.msgid, "is_listed": push.kind == "unicast", "ended": list(ENDED)},
        **{"first": push.msgid, "last": push.msgid, "category": category},
    }
    query = sql(
        __package__,
        "value_counts",
        sets=state_sets(push.platform),
        values=sql(__package__, "value_sets"),
        reasons=sql(__package__, "state_reasons"),
    )
    rows = await clickhouse.rows(query, parameters)
    days = await expired_outcome_days(clickhouse, push.appkey, push.msgid)
    return PushStatesResponse(appkey=push.appkey, values=_by_value(rows, days))


def category_column(category: "Category.ValueType") -> str:
    """Return the name of the category's column. InputError: it is no category."""
    if category == Category.CATEGORY_UNSPECIFIED or category not in Category.values():
        raise InputError("category is none of the categories")
    return Category.Name(category).removeprefix("CATEGORY_").lower()


def _by_value(rows: Iterable[Any], expired_days: int) -> Iterable[ValueStates]:
    for info, of_value in groupby(rows, itemgetter(0)):
        counts = [StateCount(state=state, reason=reason, devices=devices) for _, state, reason, devices in of_value]
        yield ValueStates(info=info, states=sorted_counts(counts, expired_days))


# The devices of a push that are in one state, for one reason, in pages: all of them, or those with one attribute.

_MOST = (2**63 - 1, 2**16 - 1, 2**32 - 2)
"""Bounds of a position: message id, partition and device number."""


async def devices_in_state(clickhouse: ClickHouse, request: ListPushDevicesRequest) -> ListPushDevicesResponse:
    """Return a page. InputError: no page gave this `pos`. NotFoundError: there is no such push."""
    after = _position(request.pos)
    push = await find_planned(clickhouse, request.msgid)
    if push is None:
        raise no_such_push(request.msgid)
    if await expired_outcome_days(clickhouse, push.appkey, push.msgid):
        return ListPushDevicesResponse(appkey=push.appkey)
    is_first = request.msgid == push.msgid
    parameters = {
        **{"appkey": push.appkey, "push": push.msgid, "is_listed": push.kind == "unicast", "ended": list(ENDED)},
        **{"first": request.msgid, "last": push.last_msgid if is_first else request.msgid},
        **{"state": request.state, "reason": request.reason, "limit": request.limit + 1},
        **dict(zip(("after_msgid", "after_partition", "after_number"), after or (0, 0, 0), strict=True)),
    }
    of_states = "states"
    if request.category:
        parameters |= {"category": category_column(request.category), "info": request.info}
        of_states = f"({sql(__package__, 'states_of_value', values=sql(__package__, 'value_sets'))})"
    query = sql(
        __package__,
        "state_devices",
        sets=state_sets(push.platform),
        of_states=of_states,
        reasons=sql(__package__, "state_reasons"),
    )
    rows = await clickhouse.rows(query, parameters)
    page = rows[: request.limit]
    tokens = await device_tokens(clickhouse, push.appkey, {(partition, number) for _, partition, number in page})
    return ListPushDevicesResponse(
        appkey=push.appkey,
        devices=(DeviceOfPush(msgid=msgid, token=tokens.get((*device,), "")) for msgid, *device in page),
        pos="-".join(map(str, page[-1])) if len(rows) > len(page) else "",
    )


def _position(pos: str) -> Sequence[int]:
    """Return the message id, partition and number of the last device of the page before; none for the first page."""
    if not pos:
        return ()
    texts = pos.split("-")
    if len(texts) != len(_MOST) or not all(text.isascii() and text.isdecimal() and len(text) <= 19 for text in texts):
        raise InputError("pos is not a position that a page gave")
    numbers = [int(text) for text in texts]
    if any(number > most for number, most in zip(numbers, _MOST, strict=True)):
        raise InputError("pos is not a position that a page gave")
    return numbers
