"""The question behind each number in a table of statistics, as the path of the page that answers it."""

from collections.abc import Sequence
from urllib.parse import urlencode

from edge.console.actions.statistics import Question
from edge.console.view.statistics_table import NOT_RECEIVED, StatisticsRow

_DIVIDED_BY = "channel"
"""A category that all types have."""


def links_of(question: Question, row: StatisticsRow) -> Sequence[str]:
    """Return the path for each number of the row, "" for none.

    Behind a day it is the day alone, behind this the day divided by a category, and behind a value the value alone.
    Behind the devices that did not receive a push it is their reasons.
    """
    if row.msgid:
        reasons = f"/apps/{question.appkey}/pushes/{row.msgid}/failures"
        path = f"{reasons}?{urlencode({'category': question.category})}" if question.category else reasons
        return [path if number in NOT_RECEIVED and value else "" for number, value in enumerate(row.values)]
    return [_detail(question, row)] * len(row.values)


def _detail(question: Question, row: StatisticsRow) -> str:
    if row.date:
        is_alone = question.first == question.last == row.date
        divided = {"category": _DIVIDED_BY} if is_alone else {}
        return f"/statistics?{question.query(first=row.date, last=row.date, **divided)}"
    is_known = bool(row.info) and row.info != question.info
    return f"/statistics?{question.query(info=row.info or '')}" if is_known else ""
