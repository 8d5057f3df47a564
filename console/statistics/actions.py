"""Statistics: a question as texts, and the answer of analytics."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from urllib.parse import urlencode

import msgspec

from console.shell.backend import ANALYTICS_S, Backend
from console.shell.numbers import MAX_MSGID, whole_number
from protos.analytics.v1.analytics_pb2 import (
    USER_KIND_CUMULATIVE,
    USER_KIND_NEW,
    Category,
    Dates,
    StatisticsKind,
    StatisticsRequest,
    StatisticsResponse,
)
from services.errors import Code, InputError

KINDS: Mapping[str, "StatisticsKind.ValueType"] = MappingProxyType(
    {
        "connections": StatisticsKind.STATISTICS_KIND_CONNECTIONS,
        "broadcasts": StatisticsKind.STATISTICS_KIND_BROADCASTS,
        "users": StatisticsKind.STATISTICS_KIND_USERS,
        "logins": StatisticsKind.STATISTICS_KIND_LOGINS,
    }
)
"""The types, in the order of their numbers in the interface."""

CATEGORIES = tuple(value.name.removeprefix("CATEGORY_").lower() for value in Category.DESCRIPTOR.values)[1:]
_ALL = "all"
_DAYS = 6


class StatisticsQuestion(msgspec.Struct, frozen=True):
    """What is asked for, as the texts of the form. Days are those of the service's time zone, both included."""

    appkey: str = ""
    kind: str = "connections"
    category: str = ""
    info: str = ""
    users: str = "new"
    push: str = ""
    first: str = ""
    last: str = ""

    def query(self, **changes: str) -> str:
        """Return the query of the address that asks this, with other texts in place of some."""
        return urlencode(msgspec.structs.asdict(self) | changes)


def question_of(backend: Backend, given: Mapping[str, str]) -> StatisticsQuestion:
    """Return the question with these texts; without days, it is about the last ones."""
    today = datetime.fromtimestamp(backend.clock.now_ms() / 1000, backend.zone).date()
    days = {"first": (today - timedelta(days=_DAYS)).isoformat(), "last": today.isoformat()}
    return StatisticsQuestion(**(days | dict(given)))


async def statistics(backend: Backend, question: StatisticsQuestion) -> StatisticsResponse:
    """Return the numbers. InputError: the question is invalid; NotFoundError: there is no such push."""
    return await backend.roles.analytics.Statistics(_asked(question), timeout=ANALYTICS_S)


def category_of(name: str) -> "Category.ValueType":
    """Return the category with this name. InputError: there is none."""
    if name not in CATEGORIES:
        raise InputError(Code.NO_KIND_OF_STATISTICS)
    return Category.Value(f"CATEGORY_{name.upper()}")


def _asked(question: StatisticsQuestion) -> StatisticsRequest:
    """Return the question as a request. InputError: a text of the form is invalid."""
    if question.kind not in KINDS:
        raise InputError(Code.NO_KIND_OF_STATISTICS)
    asked = StatisticsRequest(
        appkey=question.appkey,
        kind=KINDS[question.kind],
        dates=Dates(**{"from": question.first, "to": question.last}),
        user_kind=USER_KIND_CUMULATIVE if question.users == "cumulative" else USER_KIND_NEW,
    )
    if question.category:
        asked.category = category_of(question.category)
        asked.info = question.info or _ALL
    if question.kind == "broadcasts" and question.push:
        if not (number := whole_number(question.push, MAX_MSGID)):
            raise InputError(Code.NO_MESSAGE_ID)
        asked.msgid = number
    elif question.kind == "broadcasts" and question.category:
        raise InputError(Code.NO_MESSAGE_ID_OF_CATEGORY)
    return asked
