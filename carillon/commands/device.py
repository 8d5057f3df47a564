"""`carillon device`: virtual devices over the real gateway."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from ssl import SSLContext, SSLError, create_default_context
from typing import Any

import click
import msgspec
import uvloop

from carillon.commands.app import revoke
from carillon.commands.device_find import find
from carillon.commands.ios_device import VirtualDeviceSettings, new_tokens, run_virtual_devices
from carillon.commands.output import LineOutput, say
from carillon.environment import environment
from carillon.installation.options import refuse_console_options
from carillon_device import (
    FINAL,
    Device,
    DeviceEndedError,
    DeviceError,
    FileStorage,
    Frame,
    MemoryStorage,
    Push,
    RefusedError,
    Storage,
    UnavailableError,
)
from services.domain.device_protocol.frames import DeviceAttributes
from services.domain.identity import made_proof
from services.domain.settings import Port, Settings, load
from services.errors import CarillonError
from services.net.http.client_address import url_host

Show = Callable[[int, Any], None]
_QUIET = ("type", "key", "time_ms", "device")


class DeviceSettings(Settings, frozen=True, kw_only=True):
    """The settings that give the gateway's URL."""

    gateway_port: Port = 8400
    gateway_tls_cert: str | None = None

    def url(self) -> str:
        scheme = "ws" if self.gateway_tls_cert is None else "wss"
        return f"{scheme}://{url_host(self.host)}:{self.gateway_port}/device/v1"


@click.group()
def device() -> None:
    """Run virtual devices; look up and revoke devices."""


device.add_command(find)
device.add_command(revoke)


@device.command()
@click.option("--platform", type=click.Choice(["android", "ios"]), default="android", show_default=True)
@click.option("--appkey", required=True, help="The app that the devices belong to.")
@click.option("--alias", help="Set this alias.")
@click.option("--proof", metavar="JWT", help="Your server's proof of the alias and of identity tags.")
@click.option(
    "--proof-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Make the proof of each device as your server would, with this private key in PEM: EC P-256 or Ed25519.",
)
@click.option("--tag", "tags", type=int, multiple=True, help="Add this numeric tag; may be repeated.")
@click.option("--stag", "stags", multiple=True, help="Add this string tag; may be repeated.")
@click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Such as brand=Acme; may be repeated."
)
@click.option("--count", type=click.IntRange(1, 10_000), default=1, help="How many devices.", show_default=True)
@click.option("--token", metavar="HEX", help="iOS: the APNs token. Default: a random one.")
@click.option("--opens", is_flag=True, help="iOS: report an app open after each push, as if the user tapped it.")
@click.option(
    "--url",
    metavar="URL",
    help="The gateway, ws:// or wss://. Default: CARILLON_HOST and CARILLON_GATEWAY_PORT, with TLS if it is configured."
    " iOS: POST /device/v1 of the v2 interface, by default at CARILLON_V2_PORT.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    help="Trust the certificate authorities in this PEM file. Default: the system's.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Store the devices' tokens, keys and last message ids there, to reconnect as the same devices next time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def run(
    platform: str,
    appkey: str,
    alias: str | None,
    proof: str | None,
    proof_key: Path | None,
    tags: Sequence[int],
    stags: Sequence[str],
    attributes: Sequence[str],
    count: int,
    token: str | None,
    opens: bool,
    url: str | None,
    ca: str | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Connect virtual devices, print their events and acknowledge every push. Ctrl-C ends them, and so does the end
    of what reads their output.

    Virtual iOS devices have no connection: they register over HTTP and receive the pushes that the APNs simulator
    accepts for them. The simulator does not run if CARILLON_APNS_URL is set.
    """
    refuse_console_options("carillon device run", "connects to the gateway by itself, at its own --url")
    requests = _initial_requests(alias, tags, stags, _proof(appkey, alias, tags, stags, proof, proof_key))
    output = LineOutput()
    line = _json_line if as_json else _text_line

    def show(index: int, event: Any) -> None:
        output.print(line(index, event))

    if platform == "ios":
        _check_options("--platform android", {"--ca": ca, "--state": state})
        tokens = _tokens(token, count)
        interface = url or _default_url(VirtualDeviceSettings)
        given = _attributes(attributes)
        run_virtual_devices(interface, appkey, tokens, given, requests, show, output.closed, opens=opens)
        return
    _check_options("--platform ios", {"--token": token, "--opens": opens or None})
    gateway = url or _default_url(DeviceSettings)
    make = partial(Device, gateway, appkey, attributes=_attributes(attributes), ssl=_authorities(gateway, ca))
    try:
        devices = [_virtual(index, show, make, _storage(state, appkey, index)) for index in range(1, count + 1)]
        reasons = uvloop.run(_run(devices, requests, show, output))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    for reason in sorted(set(reasons)):
        say(f"{reason}: {FINAL[reason]}", err=True)
    if "unauthorized" in reasons and state is not None and any(one.token for one in devices):
        told = (
            f"If a key was revoked, delete the device's file {appkey}-NUMBER.json in {state}: it then registers anew."
        )
        say(told, err=True)
    sys.exit(1 if set(reasons) - {"replaced"} else 0)


def _proof(
    appkey: str, alias: str | None, tags: Sequence[int], stags: Sequence[str], given: str | None, key: Path | None
) -> str | None:
    """Return the proof of the alias and the tags, if one is given or can be made."""
    if key is None:
        return given
    if given is not None:
        raise click.UsageError("--proof and --proof-key exclude each other")
    try:
        return made_proof(key.read_text("ascii"), appkey, alias, tags, stags, time.time())
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{key}: {error}", param_hint="--proof-key") from None


def _initial_requests(alias: str | None, tags: Sequence[int], stags: Sequence[str], proof: str | None) -> list[Frame]:
    proven: Frame = {} if proof is None else {"proof": proof}
    requests: list[Frame] = []
    if alias is not None:
        requests.append({"type": "set_alias", "alias": alias, **proven})
    if tags:
        requests.append({"type": "add_tags", "tags": tags, **proven})
    if stags:
        requests.append({"type": "add_stags", "stags": stags, **proven})
    return requests


def _tokens(token: str | None, count: int) -> Sequence[str]:
    if token is None:
        return new_tokens(count)
    if count > 1:
        raise click.UsageError("--token names one device and excludes --count")
    return [token]


def _default_url(settings: type[DeviceSettings] | type[VirtualDeviceSettings]) -> str:
    try:
        return load(settings, environment()).url()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


def _check_options(needed: str, options: Mapping[str, object]) -> None:
    """Refuse options of the other platform."""
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(f"{name} goes with {needed}")


def _authorities(url: str, ca: str | None) -> SSLContext | None:
    if ca is None:
        return None
    if not url.startswith("wss://"):
        raise click.BadParameter(f"{url} is not wss://", param_hint="--ca")
    try:
        return create_default_context(cafile=ca)
    except SSLError:
        raise click.BadParameter(f"{ca} holds no certificate in PEM form", param_hint="--ca") from None


def _storage(state: Path | None, appkey: str, index: int) -> Storage:
    """Return the storage of a device. Its file is readable by the owner alone, because it holds the device key."""
    if state is None:
        return MemoryStorage()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileStorage(state / f"{appkey}-{index}.json")


def _attributes(pairs: Sequence[str]) -> Mapping[str, str]:
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in DeviceAttributes.__struct_fields__:
            known = ", ".join(DeviceAttributes.__struct_fields__)
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE with one of {known}", param_hint="--attribute")
        given[name] = value
    return given


def _virtual(index: int, show: Show, make: Callable[..., Device], storage: Storage) -> Device:
    """Return a device that prints its events and reports notifications as shown."""

    def push(frame: Push) -> None:
        show(index, frame)
        if frame["is_notif"]:
            with contextlib.suppress(UnavailableError):
                made.report("shown", frame["msgid"])

    made = make(storage=storage, on_push=push, on_event=partial(show, index))
    return made


async def _run(devices: Sequence[Device], requests: Sequence[Frame], show: Show, output: LineOutput) -> list[str]:
    """Run until all devices ended, a signal arrives or nobody reads the output. Returns the final goodbye reasons."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tasks = [
        asyncio.create_task(_run_device(one, requests, partial(show, index))) for index, one in enumerate(devices, 1)
    ]
    ended = asyncio.create_task(asyncio.wait(tasks))
    stops = [asyncio.create_task(stopping.wait()), asyncio.create_task(output.closed())]
    await asyncio.wait({ended, *stops}, return_when=asyncio.FIRST_COMPLETED)
    for stop in stops:
        stop.cancel()
    await asyncio.gather(*(one.close() for one in devices))
    await ended
    return [reason for task in tasks if (reason := task.result())]


async def _run_device(one: Device, requests: Sequence[Frame], show: Callable[[Frame], None]) -> str:
    """Connect, send the requests and stay connected. Returns the reason of the final goodbye, or ""."""
    try:
        await one.connect(seconds=86_400)
        for request in requests:
            show({**await _answer(one, request), "request": request["type"]})
        await one.ended()
    except DeviceEndedError as ended:
        return ended.reason
    except UnavailableError:
        return ""
    return ""


async def _answer(one: Device, request: Frame) -> Frame:
    try:
        return await one.request(request)
    except RefusedError as refused:
        return {"type": "error", "code": refused.code, "desc": refused.desc}
    except DeviceError as error:
        return {"type": "error", "desc": str(error)}


def _json_line(index: int, event: Any) -> str:
    return msgspec.json.encode({"time_ms": int(time.time() * 1000), "device": index, **event}).decode()


def _text_line(index: int, event: Any) -> str:
    now = time.time()
    moment = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
    details = "  ".join(f"{name}={_text(value)}" for name, value in event.items() if name not in _QUIET)
    return f"{moment}  device {index}  {event['type']:<12}  {details}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
