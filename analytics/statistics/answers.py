"""Answers questions for statistics, each kind from its own file."""

from analytics.statistics.broadcasts import broadcasts
from analytics.statistics.connections import connections
from analytics.statistics.logins import logins
from analytics.statistics.question import Question
from analytics.statistics.users import users
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import StatisticsKind, StatisticsResponse


async def answer(clickhouse: ClickHouse, question: Question) -> StatisticsResponse:
    """NotFoundError: the message id is no broadcast's."""
    match question.kind:
        case StatisticsKind.STATISTICS_KIND_CONNECTIONS:
            return StatisticsResponse(connections=await connections(clickhouse, question))
        case StatisticsKind.STATISTICS_KIND_BROADCASTS:
            return StatisticsResponse(broadcasts=await broadcasts(clickhouse, question))
        case StatisticsKind.STATISTICS_KIND_USERS:
            return StatisticsResponse(users=await users(clickhouse, question))
        case StatisticsKind.STATISTICS_KIND_LOGINS:
            return StatisticsResponse(logins=await logins(clickhouse, question))
        case _:
            raise ValueError("a question has a kind")
