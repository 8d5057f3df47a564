"""Firefox without a screen, and a push service that it connects to in the place of Mozilla's.

Mozilla's client protocol has JSON frames over a WebSocket: hello, register, unregister, notification and ack.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from services.process.clock import SystemClock
from services.webpush_simulator.requests import AcceptedMessage
from services.webpush_simulator.server import WebPushSimulator
from services.webpush_simulator.subscriptions import base64url
from testkit.programs import needed

SUBPROTOCOL = "push-notification"
DECRYPTED, NOT_DECRYPTED = 100, 101
"""Codes of Firefox's acknowledgements."""

FIREFOX = ("firefox-esr", "firefox")
_PREFERENCES = {
    "dom.push.connection.enabled": True,
    "dom.push.testing.allowInsecureServerURL": True,
    "permissions.default.desktop-notification": 1,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "http://127.0.0.1:1/",
    "browser.aboutwelcome.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "alerts.useSystemBackend": False,  # there is no service of the desktop that would show notifications
    "toolkit.shutdown.fastShutdownStage": 0,
}
_STOP_S = 60.0


class _Client(WSListener):
    """The connection of a Firefox."""

    def __init__(self, service: "MozillaPushService") -> None:
        self._service = service
        self._transport: WSTransport

    def send(self, **frame: Any) -> None:
        self._transport.send(WSMsgType.TEXT, json.dumps(frame).encode())

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self._service.on_frame(self, json.loads(frame.get_payload_as_bytes()))
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._service.on_left(self)


class _Kept(NamedTuple):
    """A message that Firefox has not acknowledged; `version` names it to Firefox."""

    version: str
    message: AcceptedMessage


class MozillaPushService(WebPushSimulator):
    """Takes messages over HTTP, and brings those for Firefox to the one that is connected to `client_url`.

    It keeps a message until Firefox has acknowledged it, one for each topic.

    `codes`: those of Firefox's acknowledgements. `damages_next`: a byte of the next message is changed on its way.
    `ends`: by the app's key, how the tokens of its subscriptions end.
    """

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.client_url = ""
        self.has_client = asyncio.Event()
        """Set once a Firefox has said hello, until it has left."""

        self.codes: list[int] = []
        self.damages_next = False
        self.ends: dict[str, str] = {}
        self.latest: dict[str, str] = {}
        """The token of the latest subscription, by the app's key."""

        self.kept: dict[str, dict[str, _Kept]] = {}
        """What Firefox has not acknowledged, by token and topic."""

        self._client: _Client | None = None
        self._tokens_by_channel: dict[str, str] = {}
        self._channels_by_token: dict[str, str] = {}

    @property
    def kept_count(self) -> int:
        """How many messages Firefox has not acknowledged."""
        return sum(map(len, self.kept.values()))

    async def run(self, ready: asyncio.Event) -> None:
        server = await ws_create_server(self._accept, "127.0.0.1", 0, use_aiofastnet=False)
        self.client_url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        try:
            await super().run(ready)
        finally:
            server.close()

    def _accept(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        response = WSUpgradeResponse.create_101_response(extra_headers={"Sec-WebSocket-Protocol": SUBPROTOCOL})
        return WSUpgradeResponseWithListener(response, _Client(self))

    def on_frame(self, client: _Client, frame: dict[str, Any]) -> None:
        match frame.get("messageType"):
            case "hello":
                name = frame.get("uaid") or secrets.token_hex(16)
                client.send(messageType="hello", status=200, uaid=name, use_webpush=True, broadcasts={})
                self._client = client
                self.has_client.set()
                for token, by_topic in self.kept.items():
                    for kept in by_topic.values():
                        self._send(token, kept)
            case "register":
                client.send(messageType="register", status=200, **self._registered(frame["channelID"], frame["key"]))
            case "unregister":
                if ended := self._tokens_by_channel.pop(frame["channelID"], None):
                    self.unsubscribe(ended)
                client.send(messageType="unregister", status=200, channelID=frame["channelID"])
            case "ack":
                for update in frame["updates"]:
                    self._acknowledged(update["channelID"], update["version"], update["code"])
            case None:
                client.send()  # a ping

    def on_left(self, client: _Client) -> None:
        if self._client is client:
            self._client = None
            self.has_client.clear()

    def _registered(self, channel: str, key: str) -> dict[str, str]:
        key = key.rstrip("=")
        token = f"{secrets.token_hex(8)}-{self.ends.get(key, 'firefox')}"
        self._tokens_by_channel[channel], self._channels_by_token[token] = token, channel
        self.latest[key] = token
        return {"channelID": channel, "pushEndpoint": self.endpoint(self.subscribe(token, key))}

    def _acknowledged(self, channel: str, version: str, code: int) -> None:
        self.codes.append(code)
        kept = self.kept.get(self._tokens_by_channel.get(channel, ""), {})
        for topic in [topic for topic, each in kept.items() if each.version == version]:
            del kept[topic]

    def _bring(self, message: AcceptedMessage) -> None:
        """Bring a message to Firefox, or keep it until it is there; only Firefox can decrypt it."""
        if message.token not in self._channels_by_token:
            super()._bring(message)
            return
        kept = _Kept(secrets.token_hex(16), message)
        self.kept.setdefault(message.token, {})[message.topic or kept.version] = kept
        self._send(message.token, kept)

    def _send(self, token: str, kept: _Kept) -> None:
        if self._client is None:
            return
        body = bytearray(kept.message.body)
        if self.damages_next:
            self.damages_next = False
            body[-1] ^= 1
        self._client.send(
            messageType="notification",
            channelID=self._channels_by_token[token],
            version=kept.version,
            ttl=kept.message.ttl_s,
            data=base64url(bytes(body)),
            headers={"encoding": "aes128gcm"},
        )


@asynccontextmanager
async def running_firefox(
    profile: Path, service: MozillaPushService, *pages: str, commands_port: int | None = None
) -> AsyncIterator[None]:
    """Run Firefox with these pages; it is stopped as its user would stop it. A test is skipped where there is none.

    `commands_port`: where it takes commands, see `firefox_tabs`.
    """
    _prepare(profile, service)
    remote = [] if commands_port is None else ["--remote-debugging-port", str(commands_port)]
    command = (needed(*FIREFOX), "--headless", "--no-remote", *remote, "--profile", str(profile), *pages)
    with (profile / "output").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env={"PATH": "/usr/bin:/bin", "HOME": str(profile)}, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _prepare(profile: Path, service: MozillaPushService) -> None:
    profile.mkdir(parents=True, exist_ok=True)
    preferences = {**_PREFERENCES, "dom.push.serverURL": service.client_url}
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items()]
    (profile / "user.js").write_text("".join(lines))
