"""Addresses on channels in the console: the device's page, and the list of dead ones."""

from typing import Any

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH
from protos.registry.v1.devices_pb2 import ClearAddress, DeviceCommand, SetAddress
from services.domain.addresses import address_hash, fingerprint
from services.domain.command_writer import CommandWriter, device_command
from tests.console.conftest import ConsoleInstallation, text_of
from tests.console.pushes.test_pages import device, push_of_app, viewer_of

ENDPOINT = "https://push.example.org/wpush/v2/secret-part"
SHOWN = fingerprint(address_hash(CHANNEL_WEBPUSH, ENDPOINT))


async def change(console: ConsoleInstallation, appkey: str, token: str, **what: Any) -> None:
    writer = CommandWriter("test", console.log, console.peers, console.clock, 4)
    console.clock.move(1)
    await writer.append_and_wait([device_command(DeviceCommand(appkey=appkey, token=token, **what))])


async def set_addresses(console: ConsoleInstallation, appkey: str, dead: int) -> None:
    """Give the app a device, token-0, with an endpoint, and others with dead tokens of FCM."""
    await device(console, appkey, "token-0", "alice")
    await change(console, appkey, "token-0", set_address=SetAddress(channel=CHANNEL_WEBPUSH, address=ENDPOINT))
    for number in range(1, dead + 1):
        token = f"token-{number}"
        await device(console, appkey, token, f"user-{number}")
        await change(console, appkey, token, set_address=SetAddress(channel=CHANNEL_FCM, address=f"secret {number}"))
        clear = ClearAddress(channel=CHANNEL_FCM, dead_reason=f"UNREGISTERED <{number}>")
        await change(console, appkey, token, clear_address=clear)


async def test_a_device_shows_its_channels_but_not_the_addresses(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await set_addresses(console, appkey, dead=1)
    viewer = await viewer_of(console)
    living = await viewer.get(f"/apps/{appkey}/device?name=token-0")
    assert f"webpush {SHOWN} since" in text_of(living)
    assert "secret-part" not in living.text
    dead = await viewer.get(f"/apps/{appkey}/device?name=token-1")
    assert "dead: UNREGISTERED <1>" in text_of(dead)
    assert "secret 1" not in dead.text
    await change(console, appkey, "token-1", set_address=SetAddress(channel=CHANNEL_WEBPUSH, address=ENDPOINT))
    clear = ClearAddress(channel=CHANNEL_WEBPUSH, to_token="token-1")
    await change(console, appkey, "token-0", clear_address=clear)
    assert "another device set the same address: token-1" in text_of(
        await viewer.get(f"/apps/{appkey}/device?name=token-0")
    )


async def test_dead_addresses_of_an_app_are_listed_latest_first(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await set_addresses(console, appkey, dead=52)
    viewer = await viewer_of(console)
    assert f'href="/apps/{appkey}/addresses"' in (await viewer.get(f"/apps/{appkey}")).text
    page = await viewer.get(f"/apps/{appkey}/addresses")
    words = text_of(page)
    assert ("UNREGISTERED <52>" in words, "UNREGISTERED <2>" in words) == (True, False)
    assert "secret" not in page.text.replace("secret key", "")
    following = page.text.split('href="?after=')[1].split('"')[0]
    rest = text_of(await viewer.get(f"/apps/{appkey}/addresses?after={following}"))
    assert ("UNREGISTERED <2>" in rest, "UNREGISTERED <3>" in rest) == (True, False)
    assert (await viewer.get(f"/apps/{appkey}/addresses?after=x")).status_code == 400
    other = await push_of_app(console, "Other")
    assert "No address is dead" in text_of(await (await viewer_of(console, "Other")).get(f"/apps/{other}/addresses"))
