"""The devices of a push in a state, as the service lists them."""

from pathlib import Path

import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import ListPushDevicesRequest
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.runtime.errors import InputError, NotFoundError
from services.runtime.log.sqlite.log import SqliteLog
from tests.roles.analytics.records import APP, T0, app_outcomes, outcomes, send, started
from tests.roles.analytics.service import running_service

DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED
FULL = "100 messages were waiting"


async def test_devices_are_listed_by_state_and_reason(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        dropped = [app_outcomes(1000, [number], DROPPED, T0 + 1, FULL) for number in (2, 3)]
        other = app_outcomes(1000, [4], DROPPED, T0 + 1)
        await log.append([send(1000), started(1000, 1, range(1, 6)), outcomes(1, *dropped, other)])

        async def count(state: str, reason: str = "", pos: str = "") -> int:
            asked = ListPushDevicesRequest(msgid=1000, state=state, reason=reason, pos=pos, limit=10)
            page = await analytics.ListPushDevices(asked)
            assert (page.appkey, page.pos) == (APP, "")
            return len(page.devices)

        assert [await count("dropped", FULL), await count("dropped"), await count("pending")] == [2, 1, 2]
        assert [await count("dropped", "other"), await count("unknown")] == [0, 0]
        assert await count("dropped", FULL, pos="1000-1-2") == 1
        for pos in ("1", "1000-1-x", f"1000-1-{2**32}", f"{'9' * 30}-1-1"):
            with pytest.raises(InputError):
                await count("dropped", pos=pos)
        with pytest.raises(NotFoundError):
            await analytics.ListPushDevices(ListPushDevicesRequest(msgid=7, state="sent", limit=1))
        with pytest.raises(InputError):
            await analytics.ListPushDevices(ListPushDevicesRequest(msgid=1000, state="sent", limit=0))
