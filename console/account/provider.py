"""Log-in with the OpenID Connect provider, and the log-out that the provider asks for (Back-Channel Logout 1.0)."""

import falcon
import msgspec
from falcon.asgi import Request, Response

from console.account.log_in import begin_session, show_log_in, too_many_attempts
from console.oidc.log_ins import ProviderLogIns
from console.oidc.provider import InvalidTokenError, ProviderAwayError, ProviderRefusalError, StaleLogInError
from console.shell.middleware import local_path
from console.shell.page import Page, Site, go_to, visit_of
from console.shell.visit import Visit
from protos.accounts.v1.service_pb2 import EndSubjectSessionsRequest, LogInResult
from services.domain.attempt_buckets import AttemptBuckets
from services.errors import CarillonError
from services.net.sockets import network
from services.process.logs import logger

RETURN_PATH = "/log-in/provider/return"


class ProviderLogInPage(Page):
    """GET redirects to the provider; links lead here, as the content security policy keeps forms on this host."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        try:
            url, pending = await provider_of(self.site).begin(local_path(request.get_param("next") or "/"))
        except ProviderAwayError as error:
            _show_failure(self, request, response, error)
            return
        visit.session = msgspec.structs.replace(visit.session, provider_log_in=pending)
        raise falcon.HTTPSeeOther(url)


class ProviderReturnPage(Page):
    """GET receives the browser that the provider sends back: it begins the session, or says why there is none.

    An address has 50 attempts at once, and then one in 5 s.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._attempts = AttemptBuckets(50, 5_000)

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        log_ins = provider_of(self.site)
        pending = visit.session.provider_log_in
        visit.session = msgspec.structs.replace(visit.session, provider_log_in=None)
        address, now_ms = network(visit.origin.address), self.site.clock.now_ms()
        if wait_ms := self._attempts.wait_ms(address, now_ms):
            too_many_attempts(self, request, response, -(-wait_ms // 1000))
            return
        self._attempts.take(address, now_ms)
        try:
            identity = await log_ins.finish(pending, {name: request.get_param(name) or "" for name in request.params})
        except (StaleLogInError, ProviderRefusalError, InvalidTokenError, ProviderAwayError) as error:
            _show_failure(self, request, response, error)
            return
        answer = await self.site.roles.log_ins.LogInWithSubject(identity.asked(visit.origin))
        if answer.result != LogInResult.LOG_IN_RESULT_OK:
            problem = visit.gettext(
                "You may not use this console: your user is disabled here, or none of your groups has a role. Ask an"
                " administrator of the installation."
            )
            show_log_in(self, request, response, problem, 403)
            return
        await begin_session(self.site, visit, answer.user, identity.session)
        raise go_to(local_path(pending.next if pending else "/"))


class BackChannelPage(Page):
    """POST is what the provider's server sends when a user has logged out there: all sessions of the user end."""

    async def on_post(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        response.set_header("Cache-Control", "no-store")
        try:
            subject = await provider_of(self.site).logged_out_subject(visit.form.get("logout_token", ""))
        except InvalidTokenError as error:
            logger.warning("a log-out token was refused", error=str(error))
            response.status = falcon.HTTP_400
            response.media = {"error": "invalid_request", "error_description": "the logout_token is not valid"}
            return
        await self.site.roles.log_ins.EndSubjectSessions(
            EndSubjectSessionsRequest(subject=subject, origin=visit.origin)
        )
        await self.site.accounts.refresh()


def provider_of(site: Site) -> ProviderLogIns:
    """Return the log-ins with the provider. HTTP 404: there is none in the settings."""
    if site.provider is None:
        raise falcon.HTTPNotFound
    return site.provider


def _show_failure(page: Page, request: Request, response: Response, error: CarillonError) -> None:
    visit = visit_of(request)
    status, problem = _words(visit, error)
    logger.warning("a log-in with the provider failed", error=f"{type(error).__name__}: {error}")
    show_log_in(page, request, response, problem % {"name": page.site.provider_name}, status)


def _words(visit: Visit, error: CarillonError) -> tuple[int, str]:
    match error:
        case StaleLogInError():
            return 400, visit.gettext("This log-in took too long, or was begun in another window. Log in again.")
        case ProviderRefusalError():
            return 403, visit.gettext("%(name)s refused the log-in. Try again, or ask its administrators.")
        case InvalidTokenError():
            return 400, visit.gettext("The answer of %(name)s is not valid, so nobody is logged in. Log in again.")
        case _:
            return 503, visit.gettext("%(name)s does not answer as it should. Try again in a moment.")
