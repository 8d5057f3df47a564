"""The latest pushes of several apps: their order and pages, their words, and their counts."""

from pathlib import Path
from typing import Any

import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import LatestPushesRequest
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import AndroidStyle, IosStyle, Kind, Message
from services.domain.push_summary import MAX_TEXT, push_text, push_title
from services.errors import InputError
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import APP, T0, app_outcomes, outcomes, send, started
from tests.analytics.service import running_service

OTHER_APP = "9"


def latest(**fields: Any) -> LatestPushesRequest:
    return LatestPushesRequest(**{"appkeys": [APP, OTHER_APP, "unknown"], "limit": 2, **fields})


async def test_pages_search_and_counts(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    storm = Message(content="Stay inside", android=AndroidStyle(title="Storm WARNING"))
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000, time_ms=T0),
                send(2000, time_ms=T0 - 5, appkey=OTHER_APP, message=storm),
                send(3000, time_ms=T0 - 5, kind=Kind.KIND_UNICAST),
                send(4000, time_ms=T0 - 5, appkey="another"),
                send(900, time_ms=T0),
                started(1000, 1, [1, 2, 3]),
                outcomes(1, app_outcomes(1000, [1, 2], Outcome.OUTCOME_KIND_RECEIVED, T0 + 1)),
            ]
        )
        first = (await analytics.LatestPushes(latest())).pushes
        assert [(push.appkey, push.counts.msgid, push.title) for push in first] == [(APP, 1000, ""), (APP, 900, "")]
        assert (first[0].counts.target, first[0].counts.received, first[0].counts.sent_ms) == (3, 2, T0)
        (last,) = (await analytics.LatestPushes(latest(to_ms=T0, below_msgid=900))).pushes
        assert (last.appkey, last.counts.msgid, last.title, last.text) == (
            *(OTHER_APP, 2000),
            *("Storm WARNING", "Stay inside"),
        )
        for words, msgids in (("warning", [2000]), ("INSIDE", [2000]), ("hello", [1000, 900]), ("%", [])):
            found = (await analytics.LatestPushes(latest(words=words))).pushes
            assert [push.counts.msgid for push in found] == msgids
        assert [push.counts.msgid for push in (await analytics.LatestPushes(latest(from_ms=T0))).pushes] == [1000, 900]
        assert not (await analytics.LatestPushes(latest(appkeys=[]))).pushes
        for wrong in ({"limit": 0}, {"limit": 1001}, {"appkeys": ["1"] * 1001}, {"words": "\0"}):
            with pytest.raises(InputError):
                await analytics.LatestPushes(latest(**wrong))


@pytest.mark.parametrize(
    ("message", "title", "text"),
    [
        (Message(content="y" * 300), "", "y" * MAX_TEXT),
        (Message(content="text", android=AndroidStyle(title="title")), "title", "text"),
        (Message(content="text", ios=IosStyle(title="title")), "title", "text"),
        (Message(content='{"title":"a","body":"b"}', ios=IosStyle(content_is_json=True)), "a", "b"),
        (Message(content='{"loc-key":"k"}', ios=IosStyle(content_is_json=True)), "", '{"loc-key":"k"}'),
        (Message(content="[1]", ios=IosStyle(content_is_json=True)), "", "[1]"),
        (Message(content="no JSON", ios=IosStyle(content_is_json=True)), "", "no JSON"),
    ],
)
def test_the_words_of_a_push(message: Message, title: str, text: str) -> None:
    assert (push_title(message), push_text(message)) == (title, text)
