"""The errors of the SDK, in one tree.

DeviceError
├── DeviceEndedError   a final goodbye ended the device
├── RefusedError       the gateway answered a request with an error
├── UnavailableError   no connection now; the device reconnects by itself
└── DeadlineError      no answer in time; a request may have been carried out all the same
"""

FINAL = {
    "unauthorized": "the gateway does not accept this appkey, or this token with this key",
    "replaced": "another connection of the same device took this one's place",
    "protocol": "the gateway did not understand this device",
}
"""The reasons of final goodbyes, after which a device does not reconnect, and their meaning."""


class DeviceError(Exception):
    pass


class DeviceEndedError(DeviceError):
    """A final goodbye ended the device; `reason` is the goodbye's."""

    def __init__(self, reason: str) -> None:
        super().__init__(FINAL[reason])
        self.reason = reason


class RefusedError(DeviceError):
    """The gateway answered with an error: `code` 400 is a wrong field, 401 a wrong proof, 403 a missing one.

    From 500 on the request may be repeated.
    """

    def __init__(self, code: int, desc: str) -> None:
        super().__init__(desc)
        self.code = code
        self.desc = desc


class UnavailableError(DeviceError):
    pass


class DeadlineError(DeviceError):
    pass
