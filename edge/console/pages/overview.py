"""The overview: what the user's apps are doing now, and what to do first."""

from falcon.asgi import Request, Response

from edge.console.pages.page import Page, visit_of
from services.domain.accounts.permissions import Action


class OverviewPage(Page):
    """GET shows the overview."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        seeing_devices = [app for app in apps if visit.may_app(Action.VIEW_DEVICES, app.appkey)]
        self.show(
            request,
            response,
            "overview/overview.html",
            apps=apps,
            seeing_devices=seeing_devices,
            paused=[app for app in apps if app.HasField("pause")],
            installation_pause=self.site.apps.installation_pause,
            may_register=visit.may(Action.MANAGE_INSTALLATION),
            teams=self.visible_teams(visit),
        )
