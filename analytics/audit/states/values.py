"""Counts the devices of a broadcast or multicast by the values of a category, each by state and reason.

A device counts under the value that it had when the start of the push was ingested, as in statistics, so the values add
up to the audience.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from analytics.audit.find_push import find_planned, no_such_push
from analytics.audit.states.counts import ENDED, sorted_counts, state_sets
from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import expired_outcome_days
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import Category, PushStatesRequest, PushStatesResponse, StateCount, ValueStates
from services.runtime.errors import InputError


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
