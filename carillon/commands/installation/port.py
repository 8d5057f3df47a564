"""The installation that a command asks: the one on this machine, or one behind a console."""

from typing import Protocol

from edge.console.api.answers.audits import DeviceAudit, PushAudit


class Installation(Protocol):
    """Questions that commands ask. click.ClickException explains what to do if one fails."""

    def audit_push(self, msgid: int, token: str, *, allow_behind: bool) -> PushAudit:
        """Return what happened to a push, and on the device with this token where it is not empty."""
        ...

    def audit_device(self, appkey: str, token: str, *, allow_behind: bool) -> DeviceAudit:
        """Return what happened to a device."""
        ...
