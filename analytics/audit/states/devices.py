"""The devices of a push that are in one state, for one reason, in pages: all of them, or those with one attribute."""

from collections.abc import Sequence

from analytics.audit.find_push import find_planned, no_such_push
from analytics.audit.states.counts import ENDED, state_sets
from analytics.audit.states.values import category_column
from analytics.store.clickhouse import ClickHouse
from analytics.store.device_tokens import device_tokens
from analytics.store.retention import expired_outcome_days
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import DeviceOfPush, ListPushDevicesRequest, ListPushDevicesResponse
from services.runtime.errors import InputError

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
