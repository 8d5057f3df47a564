"""Answers statistics queries; each kind of statistics has its own file."""

from analytics.statistics.broadcasts import broadcasts
from analytics.statistics.connections import connections
from analytics.statistics.logins import logins
from analytics.statistics.query import StatisticsQuery
from analytics.statistics.users import users
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import StatisticsKind, StatisticsResponse
from services.domain.topics import DELIVERIES, DEVICES, PUSH_COMMANDS, PUSHES, SESSIONS

TOPICS = {
    StatisticsKind.STATISTICS_KIND_CONNECTIONS: (DEVICES, SESSIONS),
    StatisticsKind.STATISTICS_KIND_BROADCASTS: (DEVICES, PUSH_COMMANDS, PUSHES, DELIVERIES),
    StatisticsKind.STATISTICS_KIND_USERS: (DEVICES,),
    StatisticsKind.STATISTICS_KIND_LOGINS: (DEVICES, SESSIONS),
}
"""The topics that each kind of statistics is made of."""


async def answer(clickhouse: ClickHouse, query: StatisticsQuery) -> StatisticsResponse:
    """Return the rows of the query's kind. NotFoundError: no broadcast of the app has the message id."""
    match query.kind:
        case StatisticsKind.STATISTICS_KIND_CONNECTIONS:
            return StatisticsResponse(connections=await connections(clickhouse, query))
        case StatisticsKind.STATISTICS_KIND_BROADCASTS:
            return StatisticsResponse(broadcasts=await broadcasts(clickhouse, query))
        case StatisticsKind.STATISTICS_KIND_USERS:
            return StatisticsResponse(users=await users(clickhouse, query))
        case StatisticsKind.STATISTICS_KIND_LOGINS:
            return StatisticsResponse(logins=await logins(clickhouse, query))
        case _:
            raise ValueError("a statistics query has a kind")
