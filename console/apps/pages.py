"""Apps: the list, one app, its registration, its settings, and another secret key."""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

from falcon.asgi import Request, Response

from console.apps.actions import change_app, pause_app, resume_app, rotate_secret, services_of
from console.apps.form import difference_of, form_of, secrets_emptied
from console.apps.words import quota_names, route_names
from console.shell.page import Page, go_to, problem_of, problems_of, shown_digest, shown_text, shown_values, visit_of
from console.shell.qr import qr_image
from protos.accounts.v1.service_pb2 import GiveAppRequest
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import CreateAppRequest, CreateAppResponse, UpdateAppRequest
from services.domain.addresses import route_name
from services.domain.channel_credentials.fields import FieldKind
from services.domain.channel_credentials.forms import FORMS, settings_lines
from services.domain.channel_credentials.stored import credentials_of
from services.domain.identity import identity_mode_name, key_ids
from services.domain.master_key import sealed_digest
from services.domain.permissions import Action
from services.domain.settings import PREFIX
from services.errors import CarillonError, ConflictError, InputError
from services.net.http.device_link import device_link, is_of_this_machine

PLATFORMS = {"android": PLATFORM_ANDROID, "ios": PLATFORM_IOS}
KEEP_OLD_S = {"0": 0, "1h": 3600, "24h": 86_400, "7d": 604_800}
"""How long the former secret key stays valid, by the value of the form."""

_ACCEPTED = {"name": "-", "package": "-"}
"""Values with which an app can be registered."""

_QR_IMAGES_KEPT = 64
_kept_qr_image = lru_cache(_QR_IMAGES_KEPT)(qr_image)


class ConnectingPhone(NamedTuple):
    """How a phone becomes a device of an app: by a link and its QR code, "" while no phone can reach the host.

    `setting` names the address at which phones reach the service.
    """

    link: str
    qr: str
    host: str
    setting: str

    @classmethod
    def to(cls, url: str, appkey: str, setting: str) -> "ConnectingPhone":
        link = "" if is_of_this_machine(url) else device_link(url, appkey)
        return cls(link, _kept_qr_image(link) if link else "", urlsplit(url).hostname or "", setting)


class AppsPage(Page):
    """GET lists the apps that the user may see."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        await self.site.apps.refresh()
        team_of = self.site.accounts.team_of
        teams = {team.team_id: team.name for team in self.site.accounts.teams()}
        apps = [(app, teams.get(team_of(app.appkey), "")) for app in self.visible_apps(visit)]
        may_register = visit.may(Action.MANAGE_INSTALLATION)
        self.show(request, response, "apps/list.html", apps=apps, may_register=may_register)


class NewAppPage(Page):
    """GET shows the form; POST registers the app and shows its secret key once."""

    async def on_get(self, request: Request, response: Response) -> None:
        self._show(request, response)

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        form = visit.form
        platform = PLATFORMS.get(form.get("platform", ""))
        if platform is None:
            self._show(request, response, visit.gettext("Choose a platform."))
            return

        async def create(form: Mapping[str, str], *, only_check: bool = False) -> CreateAppResponse:
            asked = CreateAppRequest(platform=platform, origin=visit.origin, only_check=only_check)
            asked.name, asked.package = form.get("name", "").strip(), form.get("package", "").strip()
            return await self.site.roles.registry.CreateApp(asked)

        try:
            made = await create(form)
        except CarillonError as error:
            problem = await problems_of(error, visit, _ACCEPTED, partial(create, only_check=True))
            self._show(request, response, problem)
            return
        notice = visit.gettext("The app is registered.")
        if team_id := form.get("team_id", ""):
            given = GiveAppRequest(appkey=made.app.appkey, team_id=team_id, origin=visit.origin)
            try:
                await self.site.roles.accounts.GiveApp(given)
            except CarillonError:
                notice = visit.gettext(
                    "The app is registered, but it may not belong to the team yet: look at the page of the team."
                )
        await self.site.apps.refresh()
        await self.site.accounts.refresh()
        visit.notify(notice, shown_once=made.secret_key)
        raise go_to(f"/apps/{made.app.appkey}")

    def _show(self, request: Request, response: Response, problem: str = "") -> None:
        teams = self.site.accounts.teams()
        form = visit_of(request).form
        self.show(request, response, "apps/new.html", 400 if problem else 200, problem=problem, teams=teams, form=form)


class AppPage(Page):
    """GET shows an app and its settings."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        app = self.app(appkey)
        services = await services_of(self.site, app)
        self.show(
            request,
            response,
            "apps/app.html",
            app=app,
            simulators=services.simulators if services else [],
            stopped=services.stopped if services else [],
            apple=services.problems if services else None if app.platform == PLATFORM_IOS else [],
            team=self.site.accounts.team(self.site.accounts.team_of(appkey)),
            online=(await self.site.observer.read()).devices.get(appkey, 0),
            broadcasts_today=self._broadcasts_today(appkey),
            installation_pause=self.site.apps.installation_pause,
            may_send=visit.may_app(Action.SEND, appkey),
            may_view_devices=visit.may_app(Action.VIEW_DEVICES, appkey),
            may_export=visit.may_app(Action.EXPORT_PERSON, appkey),
            may_pause=visit.may_app(Action.PAUSE, appkey),
            may_change=visit.may_app(Action.CHANGE_APP, appkey),
            quota_names=quota_names(visit.gettext),
            identity=identity_mode_name(app),
            identity_keys=key_ids(app),
            credentials=settings_lines(app),
            channel_forms=FORMS.values(),
            has_old_secret=_has_old_secret(app, self.site.clock.now_ms()),
            route=route_name(app),
            route_names=route_names(visit.gettext),
            phone=self._connecting_phone(app),
        )

    def _connecting_phone(self, app: App) -> ConnectingPhone:
        if app.platform == PLATFORM_ANDROID:
            return ConnectingPhone.to(self.site.gateway_url, app.appkey, f"{PREFIX}CONSOLE_GATEWAY_URL")
        return ConnectingPhone.to(f"{self.site.v2_url}/device/v1", app.appkey, f"{PREFIX}CONSOLE_V2_URL")

    def _broadcasts_today(self, appkey: str) -> int:
        """Return how many broadcasts and multicasts of an app with a quota for these were sent on the present day."""
        today = datetime.fromtimestamp(self.site.clock.now_ms() / 1000, self.site.zone).date().isoformat()
        counted = self.site.apps.broadcasts(appkey)
        return counted.count if counted.day == today else 0


class AppSettingsPage(Page):
    """GET shows the form of the app's settings; POST changes those that differ from the form that was shown.

    Only administrators of the installation change quotas.
    """

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app = self.app(appkey)
        self._show(request, response, app, form_of(app))

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        with_quotas = visit.may(Action.MANAGE_INSTALLATION)
        try:
            change = difference_of(app, visit.form, shown_values(visit), with_quotas=with_quotas)
            await change_app(self.site, visit, change)
        except InputError as error:
            shown = shown_values(visit) or form_of(app)

            async def check(form: dict[str, str]) -> None:
                if form.get("identity_keys") == shown.get("identity_keys"):
                    form["identity"] = shown.get("identity", "")
                change = difference_of(app, form, shown, with_quotas=with_quotas)
                change.only_check = True
                await self.site.roles.registry.UpdateApp(change)

            problem = await problems_of(error, visit, shown, check)
            self._show(request, response, app, secrets_emptied(visit.form), problem)
            return
        visit.notify(visit.gettext("The settings are saved."))
        raise go_to(f"/apps/{app.appkey}")

    def _show(self, request: Request, response: Response, app: App, form: dict[str, str], problem: str = "") -> None:
        visit = visit_of(request)
        self.show(
            request,
            response,
            "apps/settings.html",
            400 if problem else 200,
            app=app,
            form=form,
            shown=visit.form.get("shown") or shown_text(form),
            problem=problem,
            may_limit=visit.may(Action.MANAGE_INSTALLATION),
            quota_names=quota_names(visit.gettext),
            route_names=route_names(visit.gettext),
            channel_forms=FORMS.values(),
            channels_in_use={channel for channel in FORMS if credentials_of(app, channel)},
            kinds=FieldKind,
        )


class SecretPage(Page):
    """GET asks how long the present secret key stays valid; POST makes another one and shows it once."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        self._show(request, response, self.app(appkey))

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        app = self.app(appkey)
        keep_old_s = KEEP_OLD_S.get(visit.form.get("keep_old", ""), 86_400)
        try:
            rotated = await rotate_secret(self.site, visit, app.appkey, keep_old_s, shown_digest(visit, "replaces"))
        except ConflictError as error:
            await self.site.apps.refresh()
            self._show(request, response, self.app(appkey), problem_of(error, visit))
            return
        visit.notify(visit.gettext("The app has another secret key."), shown_once=rotated.secret_key)
        raise go_to(f"/apps/{app.appkey}")

    def _show(self, request: Request, response: Response, app: App, problem: str = "") -> None:
        self.show(
            request,
            response,
            "apps/secret.html",
            400 if problem else 200,
            app=app,
            digest=sealed_digest(app.sealed_secret).hex(),
            has_old_secret=_has_old_secret(app, self.site.clock.now_ms()),
            problem=problem,
        )


class EndOldSecretPage(Page):
    """POST ends the validity of the secret key that the latest rotation kept."""

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        await change_app(self.site, visit, UpdateAppRequest(appkey=app.appkey, drop_old_secret=True))
        visit.notify(visit.gettext("The former secret key is not valid any more."))
        raise go_to(f"/apps/{app.appkey}")


class PausePage(Page):
    """POST pauses an app, or lets a paused one send again; the reason is in the audit."""

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit = visit_of(request)
        app = self.app(appkey)
        reason = visit.form.get("reason", "").strip()
        if visit.form.get("change") == "resume":
            unconfirmed = (await resume_app(self.site, visit, app.appkey, reason)).unconfirmed
            notice = visit.gettext("The app is resumed: it sends again.")
        else:
            unconfirmed = (await pause_app(self.site, visit, app.appkey, reason)).unconfirmed
            notice = visit.gettext("The app is paused: nothing of it is sent.")
        if unconfirmed:
            late = visit.gettext("Not confirmed yet by: %(roles)s.") % {"roles": ", ".join(unconfirmed)}
            notice = f"{notice} {late}"
        visit.notify(notice)
        raise go_to(f"/apps/{app.appkey}")


def _has_old_secret(app: App, now_ms: int) -> bool:
    """Return whether a former secret key still signs."""
    return bool(app.old_sealed_secret) and app.old_secret_until_ms > now_ms
