"""Apple's push service in a world: the simulator behind a transport without sockets, and its faults."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.registry_pb2 import ApnsKeyChange, CreateAppRequest, UpdateAppRequest
from services.apns_simulator.keys import public_key
from services.delivery.settings import INTERNET
from services.push_simulator.connection import Fault, Http2ServerConnection, HttpRequest, ScriptedReply
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from testkit.delivery.scripted_tokens import prefix_of
from testkit.delivery.settings import NO_VENDORS
from testkit.installation.app_server import AppCredentials
from tests.simulation.kernel.network.ends import ByteTransport, connected
from tests.simulation.kernel.process import CURRENT
from tests.simulation.kernel.world import LoggedError, World
from tests.simulation.model.apple import Reasons, invalid_tokens, ios_outcomes, is_accepted
from tests.simulation.world.clients import SimulatedInterface
from tests.soak.android_device import STAGS
from tests.soak.checks import Client, Observations, Violation
from tests.soak.ios_devices import IosDevices
from tests.soak.ledger import Ledger

URL = "https://apns.invalid"
_NO_ANSWER_S = 600.0
_POLLS = 60
_FAILING = ((500, "InternalServerError"), (503, "ServiceUnavailable"), (429, "TooManyRequests"))
_REFUSED = ((410, "Unregistered"), (410, "ExpiredToken"), (400, "BadDeviceToken"), (400, "DeviceTokenNotForTopic"))
_TROUBLESOME = (
    *(prefix_of(429, "TooManyRequests", once=True), prefix_of(500, "InternalServerError", once=True)),
    *(prefix_of(503, "ServiceUnavailable", once=True), prefix_of(503, "Shutdown", once=True)),
    *(prefix_of(0, fault=fault, once=True) for fault in Fault),
)
_ORDINARY = ("00", "01")


class SimulatedApple(IosDevices):
    """Apple's service, which is outside of the installation and outlives its faults.

    `failing_rate` is the share of the pushes that it answers with an error of its own.
    """

    def __init__(self, world: World, ledger: Ledger, delay_s: Callable[[], float]) -> None:
        super().__init__(ledger, world.clock())
        self.refused_tokens: dict[str, str] = {}
        self.failing_rate = 0.0
        self.is_away = False
        self._loop = world.loop
        self._delay_s = delay_s
        self._random = world.random("Apple")
        self._key = pem(ec.derive_private_key(1 + self._random.getrandbits(128), ec.SECP256R1()))
        self._ends: list[ByteTransport] = []
        self.keys.register(TEAM_ID, KEY_ID, public_key(self._key))
        self.on_push = self._note
        world.loop.dial = self._dial

    def tokens(self) -> list[str]:
        """Return tokens to register: ordinary ones, one that is refused, and some that cause trouble once."""
        chosen = [*_ORDINARY, prefix_of(*self._random.choice(_REFUSED)), *self._random.sample(_TROUBLESOME, 3)]
        return [prefix + hashlib.sha256(prefix.encode()).hexdigest()[: 64 - len(prefix)] for prefix in chosen]

    def app(self) -> CreateAppRequest:
        return CreateAppRequest(platform=PLATFORM_IOS, name="Simulated for iOS", package="org.example.ios")

    def key_for(self, appkey: str) -> UpdateAppRequest:
        """Return the change of the app that gives it its key."""
        self.appkey = appkey
        return UpdateAppRequest(appkey=appkey, apns=ApnsKeyChange(pem=self._key, key_id=KEY_ID, team_id=TEAM_ID))

    def reply_to(self, request: HttpRequest) -> ScriptedReply:
        if self._random.random() < self.failing_rate:
            status, reason = self._random.choice(_FAILING)
            return ScriptedReply([(":status", str(status))], msgspec.json.encode({"reason": reason}))
        return super().reply_to(request)

    def close_connections(self) -> None:
        """Close all connections at once; both sides notice it."""
        for end in self._ends:
            end.close()

    def lose_connections(self) -> None:
        """Lose all data on the present connections; neither side notices it."""
        for end in self._ends:
            end.cut()

    async def _dial(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        process = CURRENT.get()
        assert process is not None
        assert host in URL
        await asyncio.sleep(_NO_ANSWER_S if self.is_away else self._delay_s())
        protocol = factory()
        server = Http2ServerConnection(self, self.connections)
        ends = connected(self._loop, process, self._delay_s, protocol, server)
        self._ends = [*(end for end in self._ends if not end.is_closing()), *ends]
        return ends[0], protocol

    def _note(self, request: HttpRequest, status: str, reason: str) -> None:
        token = (request.header(":path") or "").rpartition("/")[2]
        if status in ("400", "410"):
            self.refused_tokens[token] = reason
        self._ledger.write("APNs", token=token[:8], status=status, reason=reason)


def apns_settings(apple: SimulatedApple | None, directory: Path) -> dict[str, str]:
    """Return delivery's settings for this service, whose authority becomes a file of the directory.

    Delivery starts no simulators, which listen at sockets. No app has credentials of another channel than Web Push, and
    an app that has those allows the world's push service (browsers.py) alone, so nothing leaves.
    """
    settings = {**NO_VENDORS, "apns_url": URL, "apns_sandbox_url": URL, "webpush": INTERNET}
    if apple is not None:
        authority = directory / "apple.pem"
        authority.write_text(apple.authority)
        settings["apns_authority"] = str(authority)
    return settings


def is_alarm(error: LoggedError) -> bool:
    """Return whether an error is the expected alarm that tokens do not belong to the app's topic or environment."""
    is_bad = error.text.startswith("Apple calls most tokens of the app bad")
    if is_bad and "BadDeviceToken" in error.details:
        return True
    return (is_bad or error.text == "Apple refuses pushes") and "DeviceTokenNotForTopic" in error.details


def random_trouble(random: Random) -> str:
    """Return a kind of fault of Apple's service or of the way to it."""
    return random.choice(("apple_away", "apple_closes", "apple_loses", "apple_fails"))


class IosApp:
    """An iOS app, with devices at Apple's service."""

    def __init__(self, apple: SimulatedApple, app: AppCredentials) -> None:
        self.apple = apple
        self.app = app

    @property
    def tokens(self) -> list[str]:
        """The tokens that pushes can name."""
        return list(self.apple.histories)

    async def register(self, interface: SimulatedInterface) -> None:
        """Register all devices."""
        for index, token in enumerate(self.apple.tokens()):
            await self.apple.register(interface, token, frozenset(STAGS[: index % 3]))

    def clients(self) -> dict[tuple[str, str], Client]:
        """Return the devices, which show every notification they receive."""
        return {
            (self.app.appkey, token): Client(f"iOS {token[:8]}", history, self.apple.shown[token])
            for token, history in self.apple.histories.items()
            if is_accepted(token)
        }

    async def checked(self, observed: Observations, reasons: Reasons, interface: SimulatedInterface) -> list[Violation]:
        """Check the outcomes, and wait until exactly the tokens that Apple has refused as invalid are listed.

        A token that repeated its hello may be missing: for two hours the registry keeps it.
        """
        found = await self._outcomes_checked(observed, reasons)
        listed: set[str] = set()
        for _ in range(_POLLS):
            answer = await interface.call("POST", "/v2/errortoken", {"appkey": self.app.appkey}, self.app.secret_key)
            listed = set(answer["data"][self.app.appkey])
            invalid = invalid_tokens(self.apple.refused_tokens)
            if invalid - self._registered_again(observed) <= listed <= invalid:
                return found
            await asyncio.sleep(1)
        expected = sorted(invalid_tokens(self.apple.refused_tokens))
        return [*found, Violation("apple", f"{sorted(listed)} are listed as invalid, not {expected}")]

    def _registered_again(self, observed: Observations) -> set[str]:
        devices = observed.history.devices
        return {
            device.token
            for (appkey, _), device in devices.items()
            if appkey == self.app.appkey and device.registered_again_ms
        }

    async def _outcomes_checked(self, observed: Observations, reasons: Reasons) -> list[Violation]:
        """Check the outcomes; a push to a token that Apple refuses may still wait to be sent again."""
        found: list[Violation] = []
        for _ in range(_POLLS):
            await observed.history.read()
            found = [*ios_outcomes(observed, self.app.appkey, reasons)]
            if not found:
                break
            await asyncio.sleep(1)
        return found
