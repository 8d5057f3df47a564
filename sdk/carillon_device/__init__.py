"""A client of Carillon's device protocol: stays connected, gives each push to the app once, and acknowledges it.

    device = Device("wss://push.example.org/device/v1", "1234567890", storage=FileStorage("device.json"), on_push=show)
    await device.connect()
    await device.set_alias("alice")

docs/devices.md specifies the protocol. The package needs picows and nothing of the service.
"""

from carillon_device.device import Device, Proof
from carillon_device.errors import (
    FINAL,
    DeadlineError,
    DeviceEndedError,
    DeviceError,
    RefusedError,
    UnavailableError,
)
from carillon_device.frames import Click, Frame, Known, Push
from carillon_device.storage import FileStorage, MemoryStorage, Saved, Storage

__all__ = [
    "FINAL",
    "Click",
    "DeadlineError",
    "Device",
    "DeviceEndedError",
    "DeviceError",
    "FileStorage",
    "Frame",
    "Known",
    "MemoryStorage",
    "Proof",
    "Push",
    "RefusedError",
    "Saved",
    "Storage",
    "UnavailableError",
]
