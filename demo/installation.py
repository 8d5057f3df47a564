"""The state that all parts of the demo share: the service, its clock, the apps and log-ins, and the devices."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo.app_servers import AppServers
from demo.device_users import DeviceUsers
from demo.moved_clock import ClockFile
from demo.organisation import Installed
from demo.population import DemoDevice
from demo.service import DemoService

_NOTICED_S = 0.12
"""Longer than the interval at which sleepers on the moved clock read it again."""


@dataclass
class Demo:
    """The demo while it is filled. `devices` are those of each app, by the day on which they register."""

    service: DemoService
    clock: ClockFile
    installed: Installed
    servers: AppServers
    users: DeviceUsers
    devices: dict[str, list[DemoDevice]]
    chance: random.Random

    async def move_to(self, moment_ms: int) -> None:
        """Move the demo's clock to this moment, and wait until the service has noticed."""
        self.clock.move_to(moment_ms)
        await asyncio.sleep(_NOTICED_S)
        self.users.react()

    def android(self) -> dict[str, list[DemoDevice]]:
        return {app: devices for app, devices in self.devices.items() if not devices[0].ios_token}

    def registered(self, app: str) -> Sequence[DemoDevice]:
        """Return the devices of an Android app that have been online."""
        return [device for device in self.devices[app] if device.storage.saved.token is not None]
