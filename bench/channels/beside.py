"""The own connection of a device beside a broadcast to devices that have addresses on a push service.

`carillon up` has `devices` devices with a Web Push address and no connection, and one that is connected. Pushes to that
one are sent evenly, and the time from the request to the frame is taken: first with nothing else to do, then while a
broadcast to all is encrypted and posted, to a server that accepts everything.
"""

import asyncio
import base64
import contextlib
import time
from pathlib import Path
from typing import Any

from bench.channels.making import subscriptions
from bench.channels.server import Server
from carillon_device import Device, Push
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation
from testkit.waiting import until, until_holds

RATE = 50
"""Pushes a second to the connected device."""

_AT_ONCE = 32


def measure(devices: int, seconds: float, to: Server, directory: Path) -> list[dict[str, Any]]:
    """Return the times of the frames, alone and beside the broadcast. `seconds`: how long they are measured alone."""
    with contextlib.closing(Installation(directory / "carillon", None)) as installation:
        installation.env |= {"CARILLON_WEBPUSH": "internet", "CARILLON_LOG_LEVEL": "WARNING", **UNLIMITED_REGISTRATIONS}
        installation.start()
        app = installation.create_app()
        installation.carillon(
            *("app", "set", app.appkey, "--webpush", "new", "--webpush-contact", "mailto:push@example.org"),
            *("--webpush-hosts", f"127.0.0.1:{to.plain_port}"),
        )
        rows = asyncio.run(_Measurement(installation, app, to).rows(devices, seconds))
        installation.stop()
    return rows


class _Measurement:
    def __init__(self, installation: Installation, app: AppCredentials, to: Server) -> None:
        self._installation = installation
        self._app = app
        self._to = to
        self._server = AppServer(installation.v2_url)
        self._arrived_s: dict[str, float] = {}

    async def rows(self, devices: int, seconds: float) -> list[dict[str, Any]]:
        device = Device(self._installation.gateway_url, self._app.appkey, on_push=self._note)
        await device.connect()
        assert device.token is not None
        await self._register(devices)
        rows = [{"name": "alone", **await self._times(device.token, "alone", seconds)}]
        before = await asyncio.to_thread(self._to.taken)
        broadcast = await self._server.push(self._push("broadcast", userScope=1), self._app.secret_key)
        assert broadcast["result"] == 0, broadcast
        handed_over = asyncio.create_task(self._seconds_until_taken(before + devices))
        beside = await self._times(device.token, "beside", 0, handed_over)
        rows.append({"name": f"beside {devices:,} hand-overs", **beside})
        rows.append({"name": "hand-overs", "per_s": round(devices / await handed_over)})
        await device.close()
        await self._server.close()
        return rows

    def _note(self, push: Push) -> None:
        self._arrived_s.setdefault(push["content"], time.monotonic())

    def _push(self, content: str, **target: Any) -> dict[str, Any]:
        return {
            "sendTo": {"appkey": {"android": self._app.appkey}, **target},
            "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "bench"}},
            "option": {"period": 600},
        }

    async def _register(self, devices: int) -> None:
        """Register devices with an address each; they share the keys of a few browsers."""
        browsers = subscriptions()
        numbers = iter(range(devices))

        async def register() -> None:
            for number in numbers:
                browser = browsers[number % len(browsers)]
                welcome = await self._server.device_request({"type": "hello", "appkey": self._app.appkey})
                identity = {"appkey": self._app.appkey, "token": welcome["token"], "key": welcome["key"]}
                keys = {"p256dh": _base64url(browser.p256dh), "auth": _base64url(browser.auth)}
                address = f"http://127.0.0.1:{self._to.plain_port}/wpush/v2/{number}"
                frame = {"type": "set_address", "id": 1, **identity, "channel": "webpush"}
                answer = await self._server.device_request({**frame, "address": address, "keys": keys})
                assert answer["type"] == "ok", answer

        await asyncio.gather(*(register() for _ in range(_AT_ONCE)))

    async def _times(
        self, token: str, name: str, seconds: float, also_until: "asyncio.Task[float] | None" = None
    ) -> dict[str, float]:
        """Send pushes for these seconds, and until the task is done; return percentiles of the times in ms."""
        sent_s: dict[str, float] = {}
        begun_s = time.monotonic()

        async def send(content: str) -> None:
            sent_s[content] = time.monotonic()
            target = {"userScope": 5, "token": {"android": token}}
            answer = await self._server.push(self._push(content, **target), self._app.secret_key)
            assert answer["result"] == 0, answer

        sending: list[asyncio.Task[None]] = []
        while time.monotonic() - begun_s < seconds or (also_until is not None and not also_until.done()):
            sending.append(asyncio.create_task(send(f"{name} {len(sending)}")))
            await asyncio.sleep(max(0.0, begun_s + len(sending) / RATE - time.monotonic()))
        await asyncio.gather(*sending)
        await until_holds(lambda: sent_s.keys() <= self._arrived_s.keys())
        times_ms = sorted(1000 * (self._arrived_s[content] - at_s) for content, at_s in sent_s.items())

        def at(share: float) -> float:
            return round(times_ms[min(len(times_ms) - 1, int(share * len(times_ms)))], 2)

        return {"pushes": len(times_ms), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1)}

    async def _seconds_until_taken(self, count: int) -> float:
        begun_s = time.monotonic()

        async def are_taken() -> bool:
            await asyncio.sleep(0.2)
            return await asyncio.to_thread(self._to.taken) >= count

        await until(are_taken, 3600)
        return time.monotonic() - begun_s


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
