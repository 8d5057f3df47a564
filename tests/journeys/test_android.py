"""A push from end to end on Android: service, gateway, notification, click, and the click in the audit."""

import asyncio
from asyncio.subprocess import PIPE

import pytest

from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.kotlin_sdk import LEVELS, android_sdk, run_on_android
from tests.journeys.test_push import audited, message

BOUND_S = 120
"""Robolectric takes some seconds to make an Android."""


@pytest.mark.long
@pytest.mark.parametrize("carillon", ["embedded"], indirect=True)
@pytest.mark.parametrize("level", LEVELS)
async def test_a_push_is_shown_and_clicked_on_an_android(
    carillon: Installation, app: AppCredentials, server: AppServer, level: str
) -> None:
    sdk = await asyncio.to_thread(android_sdk)
    options = (f"-Durl={carillon.gateway_url}", f"-Dappkey={app.appkey}")
    command = run_on_android(sdk, "dev.carillon.android.GatewayRun", level, *options)
    phone = await asyncio.create_subprocess_exec(*command, cwd=sdk.folder, stdin=PIPE, stdout=PIPE)
    assert phone.stdin is not None
    assert phone.stdout is not None

    async def says(word: str) -> str:
        assert phone.stdout is not None
        async with asyncio.timeout(BOUND_S):
            while not (line := (await phone.stdout.readline()).decode()).startswith(f"{word} "):
                assert line, f"it has ended without {word}"
        return line.removeprefix(f"{word} ").strip()

    try:
        push = message(app, 5, "Guten Tag", token={"android": await says("token")})
        push["msgStyle"]["android"] |= {"click_action": 2, "click_param": "https://example.org/page"}
        sent = await server.push(push, app.secret_key)
        assert await says("shown") == "Guten Tag"
        assert await says("opened") == "https://example.org/page"
        await audited(carillon, sent["id"], "received", "shown", "clicked")
        phone.stdin.write(b"seen\n")
        async with asyncio.timeout(BOUND_S):
            assert await phone.wait() == 0
    finally:
        if phone.returncode is None:
            phone.kill()
            await phone.wait()
