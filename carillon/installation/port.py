"""The port to the installation that commands call: the one on this machine, or one behind a console."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from console.apps.answers import App, NewSecret, PauseChanged
from console.audit.answers import AppTimeline, DeviceAudit, PushAudit
from protos.registry.v1.registry_pb2 import UpdateAppRequest


class Installation(Protocol):
    """The installation that commands query and change.

    click.ClickException explains what to do if a call fails.
    """

    def apps(self) -> Sequence[App]:
        """Return the apps."""
        ...

    def app(self, appkey: str) -> App:
        """Return an app."""
        ...

    def change_app(self, change: UpdateAppRequest) -> App:
        """Change settings of an app; those that the request does not name stay."""
        ...

    def rotate_secret(self, appkey: str, keep_old_s: int) -> NewSecret:
        """Give an app another secret key; the present one stays valid for some time."""
        ...

    def pause(self, appkey: str, reason: str) -> PauseChanged:
        """Pause an app, "" for all apps at once."""
        ...

    def resume(self, appkey: str, reason: str) -> PauseChanged:
        """End the pause of an app, "" for that of all apps."""
        ...

    def audit_push(self, msgid: int, token: str, *, allow_behind: bool) -> PushAudit:
        """Return what happened to a push, and on the device with this token where it is not empty."""
        ...

    def audit_device(self, appkey: str, token: str, *, allow_behind: bool) -> DeviceAudit:
        """Return what happened to a device."""
        ...

    def audit_app(self, appkey: str, from_ms: int, to_ms: int, *, allow_behind: bool) -> Iterator[AppTimeline]:
        """Yield what happened to an app in pages, the oldest first."""
        ...
