"""The overview: whether everything is well, what the user's apps are doing now, and what to do first."""

from typing import Any, NamedTuple

from falcon.asgi import Request, Response

from console.overview.installation import InstallationState
from console.send.actions import drafts_of
from console.shell.page import Page, visit_of
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, Pause
from services.domain.permissions import Action
from services.errors import DeadlineError, UnavailableError

MAX_ONLINE = 10
"""Apps that are listed with their connected devices: those with the most."""

MAX_DRAFTS = 100


class OnlineLine(NamedTuple):
    """An app with the devices that are connected now."""

    app: App
    devices: int


class OverviewPage(Page):
    """GET shows the overview."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        teams = self.visible_teams(visit)
        seeing_devices = [app for app in apps if visit.may_app(Action.VIEW_DEVICES, app.appkey)]
        self.show(
            request,
            response,
            "overview/overview.html",
            apps=apps,
            seeing_devices=seeing_devices,
            may_register=visit.may(Action.MANAGE_INSTALLATION),
            teams=teams,
            waiting_drafts=await self._waiting_drafts([team.team_id for team in teams]),
            **overview_values(
                apps,
                self.site.apps.installation_pause,
                await self.site.observer.read(),
                sees_all=visit.may(Action.MANAGE_INSTALLATION),
            ),
        )

    async def _waiting_drafts(self, team_ids: list[str]) -> int:
        """Return how many drafts wait for an approval, up to a limit; 0 while that is not known."""
        try:
            return len(await drafts_of(self.site, team_ids, waiting_only=True, limit=MAX_DRAFTS))
        except (UnavailableError, DeadlineError):
            return 0


def overview_values(
    apps: list[App], installation_pause: Pause | None, installation: InstallationState, *, sees_all: bool
) -> dict[str, Any]:
    """Return what the live parts of the overview show to somebody who sees these apps.

    `sees_all`: also what concerns the whole installation.
    """
    devices = installation.devices
    lines = [OnlineLine(app, devices.get(app.appkey, 0)) for app in apps if app.platform == PLATFORM_ANDROID]
    lines.sort(key=lambda line: -line.devices)
    return {
        "installation": installation,
        "installation_pause": installation_pause,
        "paused": [app for app in apps if app.HasField("pause")],
        "online": lines[:MAX_ONLINE],
        "sees_all": sees_all,
    }
