"""Audits of iOS devices under every spelling of their tokens, also of devices that older logs register differently."""

from pathlib import Path

import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditDeviceRequest, AuditPushRequest
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import SetAlias
from services.errors import NotFoundError
from services.log.sqlite.log import SqliteLog
from testkit.apns.tokens import ios_token
from tests.analytics.records import APP, device, device_command, send, started
from tests.analytics.service import running_service

IOS = Platform.PLATFORM_IOS
LOWER, OLD, ASKED_ONLY = ios_token("today"), ios_token("older").upper(), ios_token("never registered")


def spellings(token: str) -> list[str]:
    """Return the token in the cases and in the form that Apple's old libraries print."""
    printed = " ".join(token.lower()[at : at + 8] for at in range(0, 64, 8))
    return [token.lower(), token.upper(), f"<{printed}>", f"<{printed.upper()}>"]


async def test_every_spelling_finds_the_device(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        await log.append(
            [
                device(3, token=LOWER, platform=IOS),
                device(4, token=OLD, platform=IOS),
                device_command(5, token=ASKED_ONLY, set_alias=SetAlias(alias="a")),
                send(1000, platform=IOS),
                started(1000, 1, [3, 4]),
            ]
        )
        for registered in (LOWER, OLD):
            for token in spellings(registered):
                found = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token=token))
                assert found.token == registered
                assert [entry.event for entry in found.timeline] == ["registered", "audience"]
            for token in spellings(registered)[1:3]:
                on_device = (await analytics.AuditPush(AuditPushRequest(msgid=1000, token=token))).device
                assert (on_device.token, on_device.in_audience) == (registered, True)
        for token in spellings(ASKED_ONLY):
            asked = await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token=token))
            assert (asked.token, [entry.event for entry in asked.timeline]) == (ASKED_ONLY, ["asked"])
        with pytest.raises(NotFoundError, match="no device with this token"):
            await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token=spellings(ios_token("none"))[2]))
