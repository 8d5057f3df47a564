"""`carillon device`: virtual devices over the real gateway."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
import uvloop

from edge.device_client import FINAL, DeviceEndedError, Event, VirtualDevice
from services.runtime.config import Port, Settings, environment, load
from services.runtime.device_protocol import DeviceAttributes
from services.runtime.errors import CarillonError, UnavailableError

_QUIET = ("type", "key", "time_ms", "device")


class DeviceSettings(Settings, frozen=True, kw_only=True):
    """Where the gateway listens."""

    gateway_port: Port = 8400

    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"ws://{f'[{host}]' if ':' in host else host}:{self.gateway_port}/device/v1"


@click.group()
def device() -> None:
    """Virtual devices."""


@device.command()
@click.option("--appkey", required=True, help="The app to belong to.")
@click.option("--alias", help="Set this alias.")
@click.option("--tag", "tags", type=int, multiple=True, help="Add this numeric tag; may be repeated.")
@click.option("--stag", "stags", multiple=True, help="Add this string tag; may be repeated.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Such as brand=Acme; repeated.")
@click.option("--count", type=click.IntRange(1, 10_000), default=1, help="How many devices.", show_default=True)
@click.option("--url", help="The gateway. Default: ws://CARILLON_HOST:CARILLON_GATEWAY_PORT/device/v1")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def run(
    appkey: str,
    alias: str | None,
    tags: Sequence[int],
    stags: Sequence[str],
    attributes: Sequence[str],
    count: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Connect new devices, print what happens to them, acknowledge every push. Ends with Ctrl-C."""
    try:
        where = url or load(DeviceSettings, environment()).url()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None
    wishes: list[Event] = []
    if alias is not None:
        wishes.append({"type": "set_alias", "alias": alias})
    if tags:
        wishes.append({"type": "add_tags", "tags": tags})
    if stags:
        wishes.append({"type": "add_stags", "stags": stags})
    given = _attributes(attributes)
    devices = [VirtualDevice(where, appkey, attributes=given) for _ in range(count)]
    reasons = uvloop.run(_run(devices, wishes, as_json))
    for reason in sorted(set(reasons)):
        click.echo(f"{reason}: {FINAL[reason]}", err=True)
    sys.exit(1 if set(reasons) - {"replaced"} else 0)


def _attributes(pairs: Sequence[str]) -> Mapping[str, str]:
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in DeviceAttributes.__struct_fields__:
            known = ", ".join(DeviceAttributes.__struct_fields__)
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE with one of {known}", param_hint="--attribute")
        given[name] = value
    return given


async def _run(devices: Sequence[VirtualDevice], wishes: Sequence[Event], as_json: bool) -> list[str]:
    """Run until all have ended or a signal comes; the reasons of those that ended."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    printing = [asyncio.create_task(_print(index, one, as_json)) for index, one in enumerate(devices, 1)]
    living = [asyncio.create_task(_live(one, wishes)) for one in devices]
    ended = asyncio.create_task(asyncio.wait(living))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    await asyncio.gather(*(one.close() for one in devices))
    await ended
    for index, one in enumerate(devices, 1):
        printing[index - 1].cancel()
        while not one.events.empty():
            _show(index, one.events.get_nowait(), as_json)
    return [reason for task in living if (reason := task.result())]


async def _live(one: VirtualDevice, wishes: Sequence[Event]) -> str:
    """Connect, wish, stay; the final goodbye's reason, or ""."""
    try:
        await one.connect(seconds=86_400)
        for wish in wishes:
            try:
                answer = await one.request(wish)
            except CarillonError as error:
                answer = {"type": "error", "desc": str(error)}
            one.events.put_nowait({**answer, "request": wish["type"]})
        await one.ended()
    except DeviceEndedError as ended:
        return ended.reason
    except UnavailableError:
        return ""
    return ""


async def _print(index: int, one: VirtualDevice, as_json: bool) -> None:
    while True:
        _show(index, await one.events.get(), as_json)


def _show(index: int, event: Event, as_json: bool) -> None:
    now = time.time()
    if as_json:
        click.echo(msgspec.json.encode({"time_ms": int(now * 1000), "device": index, **event}).decode())
        return
    moment = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
    details = "  ".join(f"{name}={_text(value)}" for name, value in event.items() if name not in _QUIET)
    click.echo(f"{moment}  device {index}  {event['type']:<12}  {details}")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
