"""Exports: the state of a push on each device, as a file."""

import csv
import io
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import (
    AuditPushRequest,
    ChannelCounts,
    ExportFormat,
    ExportPushRequest,
    ExportPushResponse,
)
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import Audience, Devices, Kind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, Platform
from services.errors import BusyError, InputError, NotFoundError
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import T0, app_outcomes, cancelled, device, finished, outcomes, send, started
from tests.analytics.service import running_service

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

CSV, PARQUET = ExportFormat.EXPORT_FORMAT_CSV, ExportFormat.EXPORT_FORMAT_PARQUET


async def exported(
    analytics: "AnalyticsServiceAsyncStub", msgid: int, file_format: ExportFormat.ValueType = CSV
) -> tuple[int, list[bytes]]:
    """Return the announced number of rows, and the pieces."""
    answers = [answer async for answer in export_push(analytics, msgid, file_format)]
    return answers[0].rows, [answer.piece for answer in answers[1:]]


def export_push(
    analytics: "AnalyticsServiceAsyncStub", msgid: int, file_format: ExportFormat.ValueType = CSV
) -> AsyncIterator[ExportPushResponse]:
    async def requests() -> AsyncIterator[ExportPushRequest]:
        yield ExportPushRequest(msgid=msgid, format=file_format)

    return aiter(analytics.ExportPush(requests()))


def table(pieces: list[bytes]) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(b"".join(pieces).decode()))
    return sorted(rows, key=lambda row: (int(row["partition"]), int(row["number"]), int(row["msgid"])))


async def test_every_device_of_a_broadcast(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                send(1000),
                *(device(number) for number in (1, 2, 3, 4, 5, 6)),
                started(1000, 1, [1, 2, 3, 4, 5, 6]),
                started(1000, 2, [7]),
                started(1000, 3, [8]),
                outcomes(
                    1,
                    app_outcomes(1000, [1, 2, 3], Outcome.OUTCOME_KIND_SENT, T0 + 10),
                    app_outcomes(1000, [1], Outcome.OUTCOME_KIND_RECEIVED, T0 + 20),
                    app_outcomes(1000, [1], Outcome.OUTCOME_KIND_DISMISSED, T0 + 30),
                    app_outcomes(1000, [2], Outcome.OUTCOME_KIND_DROPPED, T0 + 40, 'mailbox "full", or so'),
                    app_outcomes(1000, [99], Outcome.OUTCOME_KIND_SENT, T0 + 40),
                    app_outcomes(
                        *(1000, [5, 6], Outcome.OUTCOME_KIND_CLAIMED, T0 + 11),
                        channel=CHANNEL_WEBPUSH,
                        simulated=[CHANNEL_WEBPUSH],
                    ),
                    app_outcomes(
                        *(1000, [5], Outcome.OUTCOME_KIND_HANDED_OVER, T0 + 12),
                        channel=CHANNEL_WEBPUSH,
                        simulated=[CHANNEL_WEBPUSH],
                    ),
                    app_outcomes(
                        *(1000, [6], Outcome.OUTCOME_KIND_RETURNED, T0 + 12, "no quota"), channel=CHANNEL_WEBPUSH
                    ),
                    app_outcomes(1001, [3], Outcome.OUTCOME_KIND_RECEIVED, T0 + 40),
                ),
                cancelled(1000, 2, T0 + 50),
                finished(1000, 3, T0 + 60),
            ]
        )
        rows, pieces = await exported(analytics, 1000)
        _, parquet = await exported(analytics, 1000, PARQUET)
        audit = await analytics.AuditPush(AuditPushRequest(msgid=1000))

    found = table(pieces)
    assert [(row["token"], row["partition"], row["number"], row["state"], row["reason"]) for row in found] == [
        ("token-1-1", "1", "1", "shown", ""),
        ("token-1-2", "1", "2", "dropped", 'mailbox "full", or so'),
        ("token-1-3", "1", "3", "sent", ""),
        ("token-1-4", "1", "4", "pending", ""),
        ("token-1-5", "1", "5", "handed_over", ""),
        ("token-1-6", "1", "6", "pending", ""),
        ("", "2", "7", "cancelled", ""),
        ("", "3", "8", "expired", ""),
    ]
    assert rows == len(found)
    assert (found[0]["sent"], found[0]["received"]) == ("2026-09-21 22:13:20.010", "2026-09-21 22:13:20.020")
    assert (found[4]["sent"], found[4]["handed_over"]) == ("", "2026-09-21 22:13:20.012")
    assert (found[0]["dismissed"], found[0]["clicked"]) == ("2026-09-21 22:13:20.030", "")
    assert [row["channel"] for row in found] == ["own", "own", "own", "", "webpush", "", "", ""]
    assert [row["simulated"] for row in found] == ["true" if row["number"] == "5" else "false" for row in found]
    assert list(audit.channels) == [
        ChannelCounts(channel="own", sent=3, received=1, shown=1),
        ChannelCounts(channel="webpush", simulated=True, sent=1),
    ]
    told = {entry.event: entry.detail for entry in audit.timeline}
    assert (told["handed_over"], told["sent"]) == ("simulator of webpush: 1", "")
    assert (told["claimed"], told["returned"]) == ("simulator of webpush: 2", "no quota: 1, webpush: 1")
    states = Counter({count.state: count.devices for count in audit.states})
    assert Counter(row["state"] for row in found) == states
    columns = pq.read_table(io.BytesIO(b"".join(parquet))).to_pydict()
    assert Counter(columns["state"]) == states
    assert {str(token) for token in columns["token"]} == {row["token"] for row in found}


async def test_texts_in_csv_are_no_formulas(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Spreadsheets show a text after an apostrophe as text; numbers stay numbers, and Parquet has the texts."""
    formulas = [
        '=HYPERLINK("http://x","y")',
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "＝1",
        "＋1",
        "－1",
        "＠1",
    ]
    formulas += ["a=1", "'=1", "１", ""]
    tokens = [text or "plain" for text in formulas]
    numbers = range(1, len(formulas) + 1)
    dropped = [
        app_outcomes(1000, [number], Outcome.OUTCOME_KIND_DROPPED, T0 + 40, reason)
        for number, reason in zip(numbers, formulas, strict=True)
    ]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        devices = [device(number, token=token) for number, token in zip(numbers, tokens, strict=True)]
        await log.append([send(1000), *devices, started(1000, 1, list(numbers)), outcomes(1, *dropped)])
        _, pieces = await exported(analytics, 1000)
        _, parquet = await exported(analytics, 1000, PARQUET)

    found = table(pieces)
    assert [row["token"] for row in found] == [f"'{text}" for text in tokens[:11]] + tokens[11:]
    assert [row["reason"] for row in found] == [f"'{text}" for text in formulas[:11]] + formulas[11:]
    assert [row["number"] for row in found] == [str(number) for number in numbers]
    columns = pq.read_table(io.BytesIO(b"".join(parquet))).to_pydict()
    assert {str(token) for token in columns["token"]} == set(tokens)


async def test_a_list_and_one_message_of_it(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    listed = Devices(
        partitions=np.array([1, 1], "<u2").tobytes(),
        numbers=np.array([4, 4], "<u4").tobytes(),
        id_offsets=np.array([0, 2], "<u4").tobytes(),
    )
    ios = Platform.PLATFORM_IOS
    push = send(1000, audience=Audience(devices=listed), id_count=3, kind=Kind.KIND_UNICAST, platform=ios)
    sent = app_outcomes(1002, [4], Outcome.OUTCOME_KIND_SENT, T0 + 10)
    expired = app_outcomes(1002, [4], Outcome.OUTCOME_KIND_EXPIRED, T0 + 20, "late")
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([push, device(4), outcomes(1, sent, expired)])
        rows, whole = await exported(analytics, 1000)
        one_row, one = await exported(analytics, 1002)

    assert [(row["msgid"], row["state"]) for row in table(whole)] == [("1000", "pending"), ("1002", "sent")]
    assert [(row["msgid"], row["state"], row["token"]) for row in table(one)] == [("1002", "sent", "token-1-4")]
    assert (rows, one_row) == (2, 1)


async def test_of_a_push_that_was_sent_twice_the_first_list_counts(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """Scheduling sends a timed push again where it does not know that it did; a device may be registered by then."""
    lists = [Audience(devices=columns(*numbers)) for numbers in ([4], [4, 5])]
    pushes = [
        send(1000, audience=each, id_count=2, kind=Kind.KIND_UNICAST, task_key="k1", time_ms=T0 + later)
        for later, each in enumerate(lists)
    ]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([pushes[0], device(4), device(5)])
        first = await analytics.AuditPush(AuditPushRequest(msgid=1000))
        await log.append([pushes[1]])
        both = await analytics.AuditPush(AuditPushRequest(msgid=1000, token="token-1-5"))
        rows, pieces = await exported(analytics, 1000)

    assert first.audience_count == both.audience_count == 1
    assert not both.device.in_audience
    assert (rows, [row["token"] for row in table(pieces)]) == (1, ["token-1-4"])
    assert [entry.event for entry in both.timeline].count("command again") == 1


def columns(*numbers: int) -> Devices:
    """Return a list of devices of partition 1, each with its own message id."""
    count = len(numbers)
    return Devices(
        partitions=np.full(count, 1, "<u2").tobytes(),
        numbers=np.array(numbers, "<u4").tobytes(),
        id_offsets=np.arange(count, dtype="<u4").tobytes(),
    )


async def test_a_large_file_comes_in_pieces(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    numbers = np.arange(20_000)
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([send(1000), started(1000, 1, numbers.tolist())])
        await log.append([outcomes(1, app_outcomes(1000, numbers, Outcome.OUTCOME_KIND_SENT, T0 + 10))])
        rows, pieces = await exported(analytics, 1000)

    assert rows == len(table(pieces)) == 20_000
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 256 * 1024


async def test_one_export_at_a_time(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is refused after a while, and audits are answered meanwhile."""
    monkeypatch.setattr("analytics.questions._EXPORT_WAIT_S", 0.01)
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([send(1000), device(1), started(1000, 1, [1])])
        first = export_push(analytics, 1000)
        assert (await anext(first)).rows == 1
        with pytest.raises(BusyError, match="another export is in progress"):
            await exported(analytics, 1000)
        assert (await analytics.AuditPush(AuditPushRequest(msgid=1000))).audience_count == 1
        assert len(table([answer.piece async for answer in first])) == 1
        assert (await exported(analytics, 1000))[0] == 1


async def test_a_push_without_devices(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append([send(1000)])
        rows, pieces = await exported(analytics, 1000)
        _, parquet = await exported(analytics, 1000, PARQUET)

    assert (rows, table(pieces)) == (0, [])
    assert pq.read_table(io.BytesIO(b"".join(parquet))).num_rows == 0


async def test_invalid_requests(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        with pytest.raises(NotFoundError, match="77"):
            await exported(analytics, 77)
        with pytest.raises(InputError, match="format"):
            await exported(analytics, 77, ExportFormat.EXPORT_FORMAT_UNSPECIFIED)
        with pytest.raises(InputError, match="msgid"):
            await exported(analytics, 0)
