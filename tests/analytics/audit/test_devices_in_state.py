"""The devices of a push in a state, as the service lists them."""

from pathlib import Path

import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import Category, ListPushDevicesRequest, PushStatesRequest
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Kind
from services.errors import InputError, NotFoundError
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import APP, T0, app_outcomes, device, outcomes, send, started
from tests.analytics.service import running_service

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


async def test_states_are_counted_by_the_value_of_a_category(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    regions = ["", "北京市", "北京市", "北京市", "上海市", ""]
    devices = [device(number, attributes={"region": region}) for number, region in enumerate(regions) if number]
    async with running_service(log, clickhouse, tmp_path) as analytics:
        dropped = app_outcomes(1000, [1, 2, 4], DROPPED, T0 + 1, FULL)
        failed = app_outcomes(1000, [3, 5], OutcomeKind.OUTCOME_KIND_FAILED, T0 + 1, "gone")
        await log.append([*devices, send(1000), started(1000, 1, range(1, 8)), outcomes(1, dropped, failed)])
        asked = PushStatesRequest(msgid=1000, category=Category.CATEGORY_REGION)
        answer = await analytics.PushStates(asked)
        counts = {
            (value.info, count.state, count.reason): count.devices for value in answer.values for count in value.states
        }
        assert (answer.appkey, counts) == (
            APP,
            {
                ("", "failed", "gone"): 1,
                ("", "pending", ""): 2,
                ("上海市", "dropped", FULL): 1,
                ("北京市", "failed", "gone"): 1,
                ("北京市", "dropped", FULL): 2,
            },
        )
        for (info, state, reason), count in counts.items():
            page = await analytics.ListPushDevices(
                ListPushDevicesRequest(
                    msgid=1000, state=state, reason=reason, limit=10, category=Category.CATEGORY_REGION, info=info
                )
            )
            assert len(page.devices) == count
        await log.append([send(2000, kind=Kind.KIND_UNICAST)])
        assert not (await analytics.PushStates(PushStatesRequest(msgid=2000, category=asked.category))).values
        with pytest.raises(NotFoundError):
            await analytics.PushStates(PushStatesRequest(msgid=7, category=asked.category))
        for category in (0, 99):
            with pytest.raises(InputError):
                await analytics.PushStates(PushStatesRequest(msgid=1000, category=category))  # type: ignore[arg-type]
