"""The program that answers the questions in a folder from a real store there."""

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from zoneinfo import ZoneInfo

from analytics.acks import AckReader, ReadPositions
from analytics.statistics.answers import answer
from analytics.statistics.logins import count_days
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from protos.analytics.v1.analytics_pb2 import Ack
from tests.simulation.world.analytics.questions import ANSWERS, QUESTIONS, Answers, Questions
from tests.simulation.world.analytics.store import Request
from tests.soak.analytics_checks import stored_pushes

_PAGE = 7
"""Acknowledgements a page: few, so that a world has several pages."""


async def answers_to(questions: Questions, directory: Path) -> Answers:
    zone = ZoneInfo(questions.zone)
    async with _store(directory, zone) as clickhouse:
        for request in questions.requests:
            await _repeat(request, clickhouse)
        queries = [StatisticsQuery.of(each, questions.now_ms, zone) for each in questions.statistics]
        return Answers(
            await stored_pushes(clickhouse),
            [await answer(clickhouse, query) for query in queries],
            {appkey: await _acknowledgements(clickhouse, questions, appkey) for appkey in questions.appkeys},
        )


@asynccontextmanager
async def _store(directory: Path, zone: ZoneInfo) -> AsyncIterator[ClickHouse]:
    """Open an empty store as analytics does. Nothing expires: the world's time is not that of this machine."""
    clickhouse = ClickHouse(None, directory / "chdb", low_priority=False)
    await clickhouse.open()
    try:
        await migrate(clickhouse)
        await clickhouse.command("SYSTEM STOP TTL MERGES")
        await count_days(clickhouse, zone)
        yield clickhouse
    finally:
        await clickhouse.close()


async def _repeat(request: Request, clickhouse: ClickHouse) -> None:
    if request.rows is None:
        await clickhouse.command(request.text, request.parameters)
    else:
        await clickhouse.insert(request.text, request.rows, request.token)


async def _acknowledgements(clickhouse: ClickHouse, questions: Questions, appkey: str) -> Sequence[Ack]:
    """Read all pages, each from the position that the former one returned."""
    reader = AckReader(
        *(clickhouse, appkey, len(questions.ends), questions.ends, _nothing_is_missing),
        now_ms=questions.now_ms,
        visible_ms=questions.now_ms,
    )
    acks: list[Ack] = []
    position: ReadPositions = {}
    while True:
        page = await reader.page(position, _PAGE)
        acks += page.acks
        position = page.positions
        if not page.has_more:
            return acks


async def _nothing_is_missing() -> int:
    return 0


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    asked = pickle.loads((folder / QUESTIONS).read_bytes())
    (folder / ANSWERS).write_bytes(pickle.dumps(asyncio.run(answers_to(asked, folder))))
