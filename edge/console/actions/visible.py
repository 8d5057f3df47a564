"""The apps and teams that an account may see."""

import falcon

from edge.console.access_control.requester import Requester
from edge.console.backend import Backend
from protos.accounts.v1.accounts_pb2 import Team
from protos.registry.v1.apps_pb2 import App
from services.domain.accounts.permissions import Action


def visible_apps(backend: Backend, requester: Requester) -> list[App]:
    """Return the apps that the account may see, by name."""
    seen = [app for app in backend.apps.all() if requester.may_app(Action.VIEW, app.appkey)]
    return sorted(seen, key=lambda app: (app.name.casefold(), app.appkey))


def visible_teams(backend: Backend, requester: Requester) -> list[Team]:
    """Return the teams that the account may see, by name."""
    return [team for team in backend.accounts.teams() if requester.may(Action.VIEW, team.team_id)]


def app_of(backend: Backend, appkey: str) -> App:
    """Return the app of a path. HTTP 404: there is none."""
    app = backend.apps.get(appkey)
    if app is None:
        raise falcon.HTTPNotFound
    return app
