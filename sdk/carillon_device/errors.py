"""What can go wrong, in one tree.

DeviceError
├── DeviceEndedError   the gateway sent the device away for good
├── RefusedError       the gateway answered a request with an error
├── UnavailableError   no connection; it will be made again by itself
└── DeadlineError      nothing came in time; whether a request was carried out is not known
"""

FINAL = {
    "unauthorized": "the gateway does not accept this appkey, or this token with this key",
    "replaced": "another connection of the same device took this one's place",
    "protocol": "the gateway did not understand this device",
}
"""Goodbyes that end a device, and what they mean."""


class DeviceError(Exception):
    pass


class DeviceEndedError(DeviceError):
    """`reason` is the goodbye's."""

    def __init__(self, reason: str) -> None:
        super().__init__(FINAL[reason])
        self.reason = reason


class RefusedError(DeviceError):
    """`code` is 400 for a wrong field; from 500 on it is the service's trouble, and the request may be repeated."""

    def __init__(self, code: int, desc: str) -> None:
        super().__init__(desc)
        self.code = code
        self.desc = desc


class UnavailableError(DeviceError):
    pass


class DeadlineError(DeviceError):
    pass
