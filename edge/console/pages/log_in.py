"""Log-in and log-out: the password, then the one-time code of a user who has a second factor."""

import msgspec
from falcon.asgi import Request, Response

from edge.console.gate.gate import local_path
from edge.console.gate.sessions import Pending
from edge.console.gate.visit import Visit
from edge.console.pages.page import Page, Site, go_to, visit_of
from protos.accounts.v1.service_pb2 import LogInRequest, LogInResponse, LogInResult, UserSummary

PENDING_MS = 5 * 60_000
"""How long the one-time code may take after the password."""


class LogInPage(Page):
    """GET shows the form; POST checks the password, and the code if the password was right before."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        visit.session = msgspec.structs.replace(visit.session, pending=None)
        self._show(request, response)

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        code = visit.form.get("code", "").strip()
        login, password = visit.form.get("login", "").strip(), visit.form.get("password", "")
        pending = visit.session.pending
        if pending and "code" in visit.form:
            if self.site.clock.now_ms() >= pending.until_ms:
                visit.session = msgspec.structs.replace(visit.session, pending=None)
                self._show(request, response, visit.gettext("That took too long. Log in again."), 400)
                return
            login, password = pending.login, pending.password
        asked = LogInRequest(login=login, password=password, code=code, origin=visit.origin)
        answer = await self.site.roles.log_ins.LogIn(asked)
        match answer.result:
            case LogInResult.LOG_IN_RESULT_OK:
                await begin_session(self.site, visit, answer.user)
                raise go_to(local_path(request.get_param("next") or "/"))
            case LogInResult.LOG_IN_RESULT_CODE_NEEDED:
                until_ms = self.site.clock.now_ms() + PENDING_MS
                visit.session = msgspec.structs.replace(visit.session, pending=Pending(login, password, until_ms))
                self._show(request, response, is_code=True)
            case LogInResult.LOG_IN_RESULT_LIMITED:
                self._limited(request, response, answer)
            case _:
                is_code = bool(pending) and "code" in visit.form
                problem = (
                    visit.gettext("This code is wrong or was used already. Wait for the next one.")
                    if is_code
                    else visit.gettext("The name or the password is wrong.")
                )
                self._show(request, response, problem, 400, is_code=is_code, login=login)

    def _limited(self, request: Request, response: Response, answer: LogInResponse) -> None:
        visit = visit_of(request)
        response.set_header("Retry-After", str(answer.retry_after_s))
        problem = visit.gettext("Too many attempts. Try again in %(seconds)s seconds.") % {
            "seconds": answer.retry_after_s
        }
        self._show(request, response, problem, 429)

    def _show(
        self,
        request: Request,
        response: Response,
        problem: str = "",
        status: int = 200,
        *,
        is_code: bool = False,
        login: str = "",
    ) -> None:
        self.show(
            request,
            response,
            "account/log_in.html",
            status,
            problem=problem,
            is_code=is_code,
            login=login,
            next=local_path(request.get_param("next") or "/"),
        )


class LogOutPage(Page):
    """POST ends the session of this browser."""

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        visit.session = self.site.sessions.new()
        visit.user = None
        visit.notify(visit.gettext("You are logged out."))
        raise go_to("/log-in")


async def begin_session(site: Site, visit: Visit, user: UserSummary) -> None:
    """Replace the session by one of this user, with another CSRF token."""
    await site.accounts.refresh()
    visit.session = site.sessions.new(user.user_id, user.session_epoch)
