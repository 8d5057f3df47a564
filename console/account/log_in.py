"""Log-in, log-out and one-time links: passwords, and the one-time code of a second factor."""

import falcon
import msgspec
from falcon.asgi import Request, Response

from console.oidc.provider import ProviderAwayError
from console.shell.middleware import local_path
from console.shell.page import AWAY, Page, Site, go_to, problem_of, visit_of
from console.shell.sessions import LONGEST_MS, Pending, ProviderSession, with_token
from console.shell.visit import Visit
from protos.accounts.v1.service_pb2 import (
    CheckLinkRequest,
    EndSessionRequest,
    LogInRequest,
    LogInResult,
    UseLinkRequest,
    UserSummary,
)
from services.errors import CarillonError, NotFoundError
from services.process.logs import logger

PENDING_MS = 5 * 60_000
"""How long the one-time code may take after the password."""


class LogInPage(Page):
    """GET shows the form; POST checks the password, or the one-time code after a right password."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        visit.session = msgspec.structs.replace(visit.session, pending=None)
        show_log_in(self, request, response)

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        code = visit.form.get("code", "").strip()
        login, password = visit.form.get("login", "").strip(), visit.form.get("password", "")
        pending = visit.session.pending
        if pending and "code" in visit.form:
            if self.site.clock.now_ms() >= pending.until_ms:
                visit.session = msgspec.structs.replace(visit.session, pending=None)
                show_log_in(self, request, response, visit.gettext("That took too long. Log in again."), 400)
                return
            login, password = pending.login, pending.password
        asked = LogInRequest(
            login=login,
            password=password,
            code=code,
            origin=visit.origin,
            only_administrators=self.site.only_administrators_have_passwords,
            browser_tokens=visit.browser_tokens.values(),
        )
        answer = await self.site.roles.log_ins.LogIn(asked)
        match answer.result:
            case LogInResult.LOG_IN_RESULT_OK:
                await begin_session(self.site, visit, answer.user, browser_token=answer.browser_token)
                raise go_to(local_path(request.get_param("next") or "/"))
            case LogInResult.LOG_IN_RESULT_CODE_NEEDED:
                until_ms = self.site.clock.now_ms() + PENDING_MS
                visit.session = msgspec.structs.replace(visit.session, pending=Pending(login, password, until_ms))
                show_log_in(self, request, response, is_code=True)
            case LogInResult.LOG_IN_RESULT_LIMITED:
                too_many_attempts(self, request, response, answer.retry_after_s)
            case _:
                is_code = bool(pending) and "code" in visit.form
                problem = (
                    visit.gettext("This code is wrong or was used already. Wait for the next one.")
                    if is_code
                    else visit.gettext("The name or the password is wrong.")
                )
                show_log_in(self, request, response, problem, 400, is_code=is_code, login=login)


class LogOutPage(Page):
    """POST ends the session of this browser for good, by a fact in the log.

    A session begun with a provider is ended there too, by way of a page that redirects by itself: the content security
    policy keeps forms from leading to another host.
    """

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        provider = visit.session.provider
        is_noted = visit.user is None or await self._end(visit)
        visit.session = self.site.sessions.new()
        visit.user = None
        url = await self._end_at_provider(provider) if provider else ""
        if url:
            response.set_header("Refresh", f"0; url={url}")
            self.show(request, response, "account/logging_out.html", url=url, name=self.site.provider_name)
        visit.notify(
            visit.gettext("You are logged out.")
            if is_noted
            else visit.gettext(
                "This browser is logged out, but the service could not note it: whoever has a copy of its cookie is"
                " still logged in. Log in again and choose “Log out everywhere” on the page of your account."
            )
        )
        if not url:
            raise go_to("/log-in")

    async def _end(self, visit: Visit) -> bool:
        """Make all consoles refuse the session from now on, and all copies of its cookie.

        Return whether the log has recorded the end.
        """
        until_ms = visit.session.started_ms + LONGEST_MS
        ended = EndSessionRequest(session_hash=visit.session.hash, until_ms=until_ms, origin=visit.origin)
        try:
            await self.site.roles.log_ins.EndSession(ended)
        except AWAY as error:
            logger.warning("a log-out could not be noted", user=visit.actor.name, error=str(error))
            return False
        await self.site.accounts.refresh()
        return True

    async def _end_at_provider(self, session: ProviderSession) -> str:
        """Revoke the refresh token; return the provider's address for the log-out, or ""."""
        if self.site.provider is None:
            return ""
        try:
            if session.refresh_token:
                await self.site.provider.provider.revoke(session.refresh_token)
            return await self.site.provider.log_out_url(session, f"{self.site.public_url}/log-in")
        except ProviderAwayError as error:
            logger.warning("the provider could not be told of a log-out", error=str(error))
            return ""


async def begin_session(
    site: Site, visit: Visit, user: UserSummary, provider: ProviderSession | None = None, *, browser_token: str = ""
) -> None:
    """Replace the session by one of this user, with a new CSRF token; `browser_token` makes the browser known."""
    await site.accounts.refresh()
    visit.session = site.sessions.new(user.user_id, user.session_epoch, provider)
    if browser_token:
        visit.browser_tokens = with_token(visit.browser_tokens, user.user_id, browser_token)


def too_many_attempts(page: Page, request: Request, response: Response, retry_after_s: int) -> None:
    """Answer an attempt that comes too early."""
    visit = visit_of(request)
    response.set_header("Retry-After", str(retry_after_s))
    problem = visit.gettext("Too many attempts. Try again in %(seconds)s seconds.") % {"seconds": retry_after_s}
    show_log_in(page, request, response, problem, 429)


def show_log_in(
    page: Page,
    request: Request,
    response: Response,
    problem: str = "",
    status: int = 200,
    *,
    is_code: bool = False,
    login: str = "",
) -> None:
    """Answer with the log-in page."""
    page.show(
        request,
        response,
        "account/log_in.html",
        status,
        problem=problem,
        is_code=is_code,
        login=login,
        next=local_path(request.get_param("next") or "/"),
        provider_name=page.site.provider_name,
        only_administrators=page.site.only_administrators_have_passwords,
    )


# One-time links, with which invited users and the first administrator choose a password.


class LinkPage(Page):
    """GET shows the form for the password; POST sets it, logs the user in and ends the link."""

    async def on_get(self, request: Request, response: Response) -> None:
        token = (request.get_param("token") or "").strip()
        problem = ""
        user: UserSummary | None = None
        if token:
            try:
                user = (await self.site.roles.log_ins.CheckLink(CheckLinkRequest(link_token=token))).user
            except NotFoundError as error:
                problem = problem_of(error, visit_of(request))
            else:
                self._check_may_have_password(visit_of(request), user)
        self.show(
            request, response, "account/link.html", 404 if problem else 200, user=user, token=token, problem=problem
        )

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        token, password = visit.form.get("token", ""), visit.form.get("password", "")
        user: UserSummary | None = None
        try:
            user = (await self.site.roles.log_ins.CheckLink(CheckLinkRequest(link_token=token))).user
            self._check_may_have_password(visit, user)
            if password != visit.form.get("repeated", ""):
                problem = visit.gettext("The two passwords differ.")
                self.show(request, response, "account/link.html", 400, user=user, token=token, problem=problem)
                return
            used = UseLinkRequest(link_token=token, new_password=password, origin=visit.origin)
            answer = await self.site.roles.log_ins.UseLink(used)
        except CarillonError as error:
            told = problem_of(error, visit)
            if isinstance(error, NotFoundError):
                self.show(request, response, "account/link.html", 404, user=None, token="", problem=told)
            else:
                self.show(request, response, "account/link.html", 400, user=user, token=token, problem=told)
            return
        await begin_session(self.site, visit, answer.user, browser_token=answer.browser_token)
        visit.notify(visit.gettext("Your password is set, and you are logged in."))
        raise go_to("/" if answer.user.has_totp else "/account/second-factor")

    def _check_may_have_password(self, visit: Visit, user: UserSummary) -> None:
        """HTTP 403: only administrators of the installation log in with a password."""
        if self.site.only_administrators_have_passwords and not user.administrator:
            raise falcon.HTTPForbidden(
                title=visit.gettext("Passwords are for administrators alone"),
                description=visit.gettext("Log in with %(name)s.") % {"name": self.site.provider_name},
            )
