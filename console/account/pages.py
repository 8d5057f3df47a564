"""The user's own account: language and time zone, password, second factor, and the end of all sessions."""

from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files

from falcon.asgi import Request, Response

from console.account.log_in import begin_session
from console.people.users import user_summary
from console.shell.page import Page, go_to, problem_of, problems_of, visit_of
from console.shell.qr import qr_image
from console.shell.visit import Visit
from protos.accounts.v1.service_pb2 import (
    ChangePasswordRequest,
    SetTotpRequest,
    StartTotpRequest,
    UpdateUserRequest,
)
from services.errors import CarillonError

_MAX_URI_LENGTH = 1000
"""Upper bound of the characters of a second factor's URI, which the form sends back.

With the longest log-in name it has fewer.
"""


_SETTINGS = ("display_name", "locale", "zone", "mail_address")
_ACCEPTED = {"display_name": "-"}
"""The value of the only field that must not be empty, while the others are checked."""


class AccountPage(Page):
    """GET shows the account; POST changes the name, the language, the time zone and the mail address."""

    async def on_get(self, request: Request, response: Response) -> None:
        await self._show(request, response)

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)

        async def change(form: Mapping[str, str], *, only_check: bool = False) -> None:
            asked = UpdateUserRequest(user_id=_own_id(visit), origin=visit.origin, only_check=only_check)
            for name in _SETTINGS:
                setattr(asked, name, form.get(name, "").strip())
            await self.site.roles.accounts.UpdateUser(asked)

        try:
            await change(visit.form)
        except CarillonError as error:
            problem = await problems_of(error, visit, _ACCEPTED, partial(change, only_check=True))
            await self._show(request, response, problem, {name: visit.form.get(name, "") for name in _SETTINGS})
            return
        await self.site.accounts.refresh()
        visit.notify(visit.gettext("Your settings are saved."))
        raise go_to("/account")

    async def _show(
        self, request: Request, response: Response, problem: str = "", form: Mapping[str, str] | None = None
    ) -> None:
        user = await user_summary(self, _own_id(visit_of(request)))
        self.show(
            request,
            response,
            "account/account.html",
            400 if problem else 200,
            user=user,
            form=form or {name: getattr(user, name) for name in _SETTINGS},
            problem=problem,
            languages=self.site.languages.all(),
            zones=_zones(),
            provider_name=self.site.provider_name,
        )


class PasswordPage(Page):
    """POST sets another password, which ends all other sessions of the user."""

    async def on_get(self, request: Request, response: Response) -> None:
        _check_has_password(visit_of(request))
        self.show(request, response, "account/password.html", problem="")

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        problem = ""
        if visit.form.get("new", "") != visit.form.get("repeated", ""):
            problem = visit.gettext("The two passwords differ.")
        else:
            asked = ChangePasswordRequest(
                password=visit.form.get("present", ""), new_password=visit.form.get("new", ""), origin=visit.origin
            )
            try:
                answer = await self.site.roles.log_ins.ChangePassword(asked)
            except CarillonError as error:
                problem = problem_of(error, visit)
            else:
                if answer.changed:
                    await begin_session(self.site, visit, answer.user, browser_token=answer.browser_token)
                    visit.notify(visit.gettext("Your password is changed. All other sessions have ended."))
                    raise go_to("/account")
                problem = _wrong_password(visit, answer.retry_after_s)
        self.show(request, response, "account/password.html", 400, problem=problem)


class SecondFactorPage(Page):
    """GET shows a new TOTP secret; POST sets it, with the password and a code, and shows the recovery codes once."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        _check_has_password(visit)
        user = await user_summary(self, _own_id(visit))
        if user.has_totp:
            raise go_to("/account")
        started = await self.site.roles.log_ins.StartTotp(StartTotpRequest(origin=visit.origin))
        self._show(request, response, started.secret, started.otpauth_uri)

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        secret, uri = visit.form.get("secret", ""), visit.form.get("uri", "")
        code = "".join(visit.form.get("code", "").split())
        try:
            answer = await self.site.roles.log_ins.SetTotp(
                SetTotpRequest(secret=secret, code=code, password=visit.form.get("password", ""), origin=visit.origin)
            )
        except CarillonError as error:
            self._show(request, response, secret, uri, problem_of(error, visit))
            return
        if answer.password_is_wrong or answer.retry_after_s:
            self._show(request, response, secret, uri, _wrong_password(visit, answer.retry_after_s))
            return
        await self.site.accounts.refresh()
        self.show(request, response, "account/recovery_codes.html", codes=list(answer.recovery_codes))

    def _show(self, request: Request, response: Response, secret: str, uri: str, problem: str = "") -> None:
        status, user = 400 if problem else 200, visit_of(request).user
        self.show(
            request,
            response,
            "account/second_factor.html",
            status,
            secret=secret,
            uri=uri,
            qr=qr_image(uri) if uri.startswith("otpauth://totp/") and len(uri) <= _MAX_URI_LENGTH else "",
            is_demanded=user is not None and self.site.second_factors.must_enrol(user),
            problem=problem,
        )


class SessionsPage(Page):
    """POST ends all sessions of the user, this one too."""

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        ended = UpdateUserRequest(user_id=_own_id(visit), end_sessions=True, origin=visit.origin)
        await self.site.roles.accounts.UpdateUser(ended)
        visit.session = self.site.sessions.new()
        visit.notify(visit.gettext("All your sessions have ended."))
        raise go_to("/log-in")


def _own_id(visit: Visit) -> str:
    """Return the id of the user of the visit."""
    return visit.actor.name.removeprefix("user/")


def _wrong_password(visit: Visit, retry_after_s: int) -> str:
    """Return what is wrong with a password that was asked for again."""
    if retry_after_s:
        words = visit.gettext("Too many attempts. Try again in %(seconds)s seconds.")
        return words % {"seconds": retry_after_s}
    return visit.gettext("The current password is wrong.")


def _check_has_password(visit: Visit) -> None:
    """Lead a user of an OpenID Connect provider back to the page that says where the password is changed."""
    if visit.user is not None and visit.user.HasField("subject"):
        raise go_to("/account")


@cache
def _zones() -> list[str]:
    """Return the names of the time zones to choose from: those of places, and UTC."""
    names = files("tzdata").joinpath("zones").read_text().split()
    return sorted(name for name in names if ("/" in name and not name.startswith("Etc/")) or name == "UTC")
