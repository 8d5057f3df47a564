"""An installation elsewhere: its console is called with an API token."""

from carillon.commands.installation.console import ConsoleClient
from edge.console.api.answers.audits import DeviceAudit, PushAudit


class RemoteInstallation:
    """Asks `/console/v1`, with what the token may see."""

    def __init__(self, console: ConsoleClient) -> None:
        self._console = console

    def audit_push(self, msgid: int, token: str, *, allow_behind: bool) -> PushAudit:
        behind = _text(allow_behind)
        return self._console.get(PushAudit, "pushes", str(msgid), token=token or None, allow_behind=behind)

    def audit_device(self, appkey: str, token: str, *, allow_behind: bool) -> DeviceAudit:
        path = ("apps", appkey, "device-history")
        return self._console.get(DeviceAudit, *path, token=token, allow_behind=_text(allow_behind))


def _text(value: bool) -> str:
    return "true" if value else "false"
