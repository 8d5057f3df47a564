"""Listing the iOS tokens that Apple rejected: which devices count, pages, and the index used."""

import sqlite3
from contextlib import closing

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, RemoveDevice
from protos.registry.v1.registry_pb2 import InvalidToken, ListInvalidTokensRequest
from services.errors import InputError
from services.registry.queries import INVALID_TOKENS
from services.registry.store import DEVICES_FILE
from tests.services.registry.conftest import NOON_MS, RunningRegistry, Start, command


def register_device(app: App, token: str) -> DeviceCommand:
    return command(app, token, register=RegisterDevice(platform=app.platform))


def remove(app: App, token: str, reason: str, at_ms: int = NOON_MS) -> DeviceCommand:
    return command(app, token, at_ms=at_ms, remove=RemoveDevice(reason=reason))


async def page(
    registry: RunningRegistry, app: App, after: InvalidToken | None = None, limit: int = 5000
) -> list[InvalidToken]:
    request = ListInvalidTokensRequest(appkey=app.appkey, after=after, limit=limit)
    return list((await registry.stub.ListInvalidTokens(request)).tokens)


async def listed(registry: RunningRegistry, app: App) -> list[str]:
    return [invalid.token for invalid in await page(registry, app)]


async def test_only_tokens_rejected_by_apple_are_listed(registry: RunningRegistry, start: Start) -> None:
    app, other, android = await registry.app(PLATFORM_IOS), await registry.app(PLATFORM_IOS), await registry.app()
    await registry.apply(*(register_device(app, token) for token in ("bad", "gone", "left", "silent", "well")))
    await registry.apply(register_device(other, "bad"), register_device(android, "bad"))
    await registry.apply(
        remove(app, "bad", "BadDeviceToken"),
        remove(app, "gone", "Unregistered", NOON_MS + 1),
        remove(app, "left", "unregistered"),
        remove(app, "silent", ""),
        remove(android, "bad", "BadDeviceToken"),
    )
    assert android.platform == PLATFORM_ANDROID
    assert await page(registry, app) == [
        InvalidToken(token="gone", removed_ms=NOON_MS + 1),
        InvalidToken(token="bad", removed_ms=NOON_MS),
    ]
    assert await page(registry, other) == await page(registry, android) == []
    assert (await registry.verify()).equal


async def test_a_token_that_registers_again_is_not_listed(registry: RunningRegistry) -> None:
    app = await registry.app(PLATFORM_IOS)
    await registry.apply(register_device(app, "t"), remove(app, "t", "Unregistered"))
    assert await listed(registry, app) == ["t"]
    await registry.apply(register_device(app, "t"))
    assert await listed(registry, app) == []
    await registry.apply(remove(app, "t", "unregistered"))
    assert await listed(registry, app) == []


async def test_pages_continue_also_among_equal_times(registry: RunningRegistry) -> None:
    app = await registry.app(PLATFORM_IOS)
    tokens = [f"t{number:02}" for number in range(20)]
    await registry.apply(*(register_device(app, token) for token in tokens))
    await registry.apply(*(remove(app, token, "Unregistered", NOON_MS + n // 7) for n, token in enumerate(tokens)))
    wanted = tokens[14:] + tokens[7:14] + tokens[:7]
    for limit in (1, 3, 20):
        found: list[InvalidToken] = []
        while new := await page(registry, app, found[-1] if found else None, limit):
            found += new
        assert [invalid.token for invalid in found] == wanted


@pytest.mark.parametrize("limit", [0, 5001])
async def test_the_page_size_is_limited(registry: RunningRegistry, limit: int) -> None:
    app = await registry.app(PLATFORM_IOS)
    with pytest.raises(InputError, match="limit must be from 1 to 5000"):
        await page(registry, app, limit=limit)


async def test_the_query_uses_an_index(registry: RunningRegistry) -> None:
    path = registry.settings.state_dir("registry") / DEVICES_FILE
    with closing(sqlite3.connect(path)) as rows:
        page = {"appkey": "1", "removed_ms": 2**63 - 1, "token": "", "limit": 10}
        plan = rows.execute(f"EXPLAIN QUERY PLAN {INVALID_TOKENS}", page).fetchall()
    (step,) = [row[3] for row in plan]
    assert step == "SEARCH devices USING INDEX devices_invalid (appkey=? AND removed_ms<?)"
