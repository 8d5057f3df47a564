"""The question behind each number in a table of statistics, as the path of the page that answers it."""

from collections.abc import Sequence
from urllib.parse import urlencode

from edge.console.actions.statistics import CATEGORIES, Question
from edge.console.view.statistics_table import NOT_RECEIVED, StatisticsRow

_DIVIDED_BY = "channel"
"""A category that all types have."""


def path_of_push(appkey: str, msgid: int, category: str = CATEGORIES[0], info: str = "") -> str:
    """Return the path of the numbers of a broadcast or multicast, divided by a category: all values, or one."""
    asked = {"appkey": appkey, "kind": "broadcasts", "push": msgid, "category": category, "info": info}
    return f"/statistics?{urlencode({name: value for name, value in asked.items() if value})}"


def links_of(question: Question, row: StatisticsRow) -> Sequence[str]:
    """Return the path for each number of the row, "" for none.

    Behind a day it is the day alone, behind this the day divided by a category, and behind a value the value alone.
    Behind a push it is the push divided by a category, and behind the devices that did not receive it their reasons.
    """
    if not row.msgid:
        return [_detail(question, row)] * len(row.values)
    reasons = f"/apps/{question.appkey}/pushes/{row.msgid}/failures"
    if question.category:
        reasons, others = f"{reasons}?{urlencode({'category': question.category})}", _of_value(question, row)
    else:
        others = path_of_push(question.appkey, row.msgid)
    paths = (reasons if number in NOT_RECEIVED else others for number in range(len(row.values)))
    return [path if value else "" for path, value in zip(paths, row.values, strict=True)]


def _detail(question: Question, row: StatisticsRow) -> str:
    if row.date:
        is_alone = question.first == question.last == row.date
        divided = {"category": _DIVIDED_BY} if is_alone else {}
        return f"/statistics?{question.query(first=row.date, last=row.date, **divided)}"
    return _of_value(question, row)


def _of_value(question: Question, row: StatisticsRow) -> str:
    is_known = bool(row.info) and row.info != question.info
    return f"/statistics?{question.query(info=row.info or '')}" if is_known else ""
