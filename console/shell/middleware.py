"""The one place where requests to the console are authenticated, checked and answered with their cookie."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import falcon
import msgspec
from falcon.asgi import Request, Response

from console.oidc.log_ins import ProviderSessions
from console.shell.access import Access, Requester, Scope, SecondFactors
from console.shell.bearer import BearerAuthenticator, is_call
from console.shell.languages import Languages
from console.shell.sessions import BrowserCookie, ProviderSession, Session, Sessions, is_token
from console.shell.visit import SessionStatus, Visit
from edge.core.admission import Origins
from edge.core.parsing.body import Application, Receive, Send, read_body
from protos.accounts.v1.accounts_pb2 import User
from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts import AccountDirectory
from services.domain.permissions import Actor, may
from services.net.fairness import FairSemaphore, Slot

# The security headers of every answer of the console.

POLICY_HEADER = "Content-Security-Policy"


def content_security_policy(*urls: str) -> str:
    """Return the policy: no inline script or style, and nothing of another host but connections to those of `urls`."""
    origins = (f" {url.scheme}://{url.netloc}" for url in map(urlsplit, urls))
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            f"connect-src 'self'{''.join(origins)}",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


_ALWAYS = (
    (POLICY_HEADER, content_security_policy()),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)


def security_headers(*, is_secure: bool) -> Sequence[tuple[str, str]]:
    """Return the headers. `is_secure`: browsers are told to use HTTPS alone for a year."""
    return (*_ALWAYS, ("Strict-Transport-Security", "max-age=31536000")) if is_secure else _ALWAYS


LOG_IN_PATH = "/log-in"
ENROLMENT_PATH = "/account/second-factor"
PROVIDER_LOG_IN_PATH = "/log-in/provider"
MAX_FORM_BYTES = 64 * 1024
MAX_FORM_BYTES_OF_USER = 512 * 1024
"""Limit of a form of somebody who has logged in: a push may name a thousand tokens."""

MAX_FIELDS = 200
_STATIC = "/static/"
_FORM = "application/x-www-form-urlencoded"
_EVENT_STREAM = "text/event-stream"
_NOBODY = Actor(is_disabled=True)

Accesses = Mapping[str, Mapping[str, Access]]
"""What each route needs, by path template and method. What is not listed is refused."""


class SessionEndedError(falcon.HTTPForbidden):
    """A form was sent where nobody is logged in any more. Nothing was done; the browser still has the form."""


class AccessControl:
    """Falcon middleware: gives each request its Visit, or each call its Requester, and checks the declared access.

    It also checks the CSRF token of each form of a browser.
    """

    def __init__(
        self,
        accesses: Accesses,
        sessions: Sessions,
        accounts: AccountDirectory,
        bearers: BearerAuthenticator,
        languages: Languages,
        origins: Origins,
        zone: ZoneInfo,
        provider_sessions: ProviderSessions | None,
        second_factors: SecondFactors,
        *,
        is_secure: bool,
        only_administrators_have_passwords: bool = False,
    ) -> None:
        self._accesses = accesses
        self._sessions = sessions
        self._accounts = accounts
        self._bearers = bearers
        self._languages = languages
        self._origins = origins
        self._zone = zone
        self._provider_sessions = provider_sessions
        self._second_factors = second_factors
        self._browsers = BrowserCookie(is_secure=is_secure)
        self._only_administrators_have_passwords = only_administrators_have_passwords
        self._headers = security_headers(is_secure=is_secure)

    async def process_request(self, request: Request, response: Response) -> None:
        """Find out who asks for a page. Nothing is refused here, so that error pages too know their reader."""
        if is_call(request.path):
            return
        known = self._sessions.read(request.get_header("Cookie"))
        origin = self._origins.of(request)
        valid = known
        if known is not None and known.user_id and not request.path.startswith(_STATIC):
            valid = await self._checked(known, origin)
        user = self._accounts.session(valid.user_id, valid.epoch) if valid and valid.user_id else None
        session = self._sessions.seen(valid) if valid else self._sessions.new()
        browser_tokens = self._browsers.read(request.get_header("Cookie"))
        actor = _NOBODY
        if user is not None:
            actor = self._accounts.actor_of_user(user.user_id)
            origin.actor = actor.name
        request.context.known_session, request.context.known_tokens = known, browser_tokens
        request.context.visit = Visit(
            session=session,
            browser_tokens=browser_tokens,
            user=user,
            actor=actor,
            language=self._languages.chosen(user.locale if user else "", request.get_header("Accept-Language") or ""),
            zone=self._zone_of(user.zone if user else ""),
            origin=origin,
            path=request.path,
            accounts=self._accounts,
            is_fragment=request.get_header("HX-Request") == "true" or request.get_header("Accept") == _EVENT_STREAM,
        )

    async def process_resource(self, request: Request, response: Response, resource: Any, params: Any) -> None:
        methods = self._accesses[request.uri_template or ""]
        access = methods.get(request.method)
        if access is None:
            raise falcon.HTTPMethodNotAllowed(list(methods))
        requester = (
            await self._of_call(request, access)
            if is_call(request.path)
            else await self._of_page(request, access, params)
        )
        if access.action is not None and not may(requester.actor, access.action, self._team(access.scope, params)):
            raise falcon.HTTPForbidden

    async def _of_page(self, request: Request, access: Access, params: Mapping[str, str]) -> Requester:
        """Return the requester of a page: the session's visit.

        The form of a public page is read too; its CSRF token is compared unless it comes from a program.
        """
        visit: Visit = request.context.visit
        if request.method == "POST":
            if visit.user is None and not access.is_public:
                raise _session_ended(visit)
            visit.form = await self._read_form(request, visit, is_of_program=access.is_of_program)
        if visit.user is None and not access.is_public:
            raise self._ask_to_log_in(request, visit)
        if visit.user is not None and not (access.is_public or access.is_of_enrolment):
            self._check_second_factor(request, visit, visit.user)
        cookie = request.get_header("Cookie")
        visit.session_status = lambda: self._session_status(visit, cookie, access, params)
        return visit

    def _check_second_factor(self, request: Request, visit: Visit, user: User) -> None:
        """Lead a user who must have a second factor, and has none, to the page that sets it up."""
        if not self._second_factors.must_enrol(user):
            return
        if request.method == "POST":
            raise falcon.HTTPForbidden(
                title=visit.gettext("Set up a second factor first"),
                description=visit.gettext("Nothing was changed. This console demands a second factor of you."),
            )
        raise _redirection(visit, ENROLMENT_PATH)

    async def _of_call(self, request: Request, access: Access) -> Requester:
        """Return the requester of a call: the account of the API token. Cookies and CSRF tokens play no part."""
        origin = self._origins.of(request)
        requester = Requester(actor=_NOBODY, origin=origin, accounts=self._accounts)
        if not access.is_public:
            requester = await self._bearers.requester(request, origin)
        request.context.requester = requester
        return requester

    def _session_status(
        self, visit: Visit, cookie: str | None, access: Access, params: Mapping[str, str]
    ) -> SessionStatus:
        """Return the present status of the visit's session and of the right that the request needed.

        over: the session has ended, its user changed, or the user may not do this any more. due: the provider must be
        asked first whether the user is still logged in there. current: the request would be let through again.
        """
        session = self._sessions.read(cookie)
        user = self._accounts.session(session.user_id, session.epoch) if session else None
        if session is None or self._accounts.is_session_ended(session.hash) or user is None or user != visit.user:
            return "over"
        if self._second_factors.must_enrol(user):
            return "over"
        if self._accounts.actor_of_user(user.user_id) != visit.actor:
            return "over"
        if access.action is not None and not may(visit.actor, access.action, self._team(access.scope, params)):
            return "over"
        provider = self._provider_sessions
        is_due = provider is not None and session.provider is not None and provider.is_due(session.provider)
        return "due" if is_due else "current"

    async def process_response(self, request: Request, response: Response, resource: Any, succeeded: bool) -> None:
        for name, value in self._headers:
            if response.get_header(name) is None:
                response.set_header(name, value)
        if response.get_header("Cache-Control") is None:
            response.set_header("Cache-Control", "no-store")
            visit: Visit | None = getattr(request.context, "visit", None)
            if visit is not None and visit.session != request.context.known_session:
                response.append_header("Set-Cookie", self._sessions.set_cookie(visit.session))
            if visit is not None and visit.browser_tokens != request.context.known_tokens:
                response.append_header("Set-Cookie", self._browsers.set_cookie(visit.browser_tokens))

    async def _checked(self, known: Session, origin: Origin) -> Session | None:
        """Return the session of a user, renewed with the provider if due; None if it has ended."""
        user = self._accounts.session(known.user_id, known.epoch)
        if user is None or self._accounts.is_session_ended(known.hash):
            return None
        if known.provider is None:
            return known if user.administrator or not self._only_administrators_have_passwords else None
        if self._provider_sessions is None:
            return None
        provider = await self._provider_sessions.checked(known.provider, user, origin)
        return msgspec.structs.replace(known, provider=provider) if provider else None

    async def _read_form(self, request: Request, visit: Visit, *, is_of_program: bool) -> dict[str, str]:
        """Return the fields of a form. HTTP 403: its CSRF token is not the session's, or another site sends it.

        An out-of-date log-in form is shown anew instead.
        """
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        if media_type != _FORM:
            raise falcon.HTTPUnsupportedMediaType(description="send a form")
        body = await read_body(request, MAX_FORM_BYTES_OF_USER if visit.user else MAX_FORM_BYTES)
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError:
            raise falcon.HTTPBadRequest(description="the form cannot be read") from None
        if is_of_program:
            return form
        is_of_another_site = request.get_header("Sec-Fetch-Site") in ("cross-site", "same-site")
        given = form.pop("csrf", "") or request.get_header("X-CSRF-Token") or ""
        is_right = is_token(given, visit.session.csrf)
        if request.path == LOG_IN_PATH and not is_right and not is_of_another_site:
            # A log-in or log-out in another tab replaced the cookie: nothing is lost but the password.
            visit.notify(visit.gettext("The log-in form was out of date. Fill it in again."))
            raise falcon.HTTPSeeOther(request.relative_uri)
        if is_of_another_site or not is_right:
            raise falcon.HTTPForbidden(
                title=visit.gettext("This form is out of date"),
                description=visit.gettext("Nothing was changed. Go back, reload the page and send the form again."),
            )
        return form

    def _team(self, scope: Scope, params: Mapping[str, str]) -> str:
        match scope:
            case Scope.APP:
                return self._accounts.team_of(params[scope.value])
            case Scope.TEAM:
                return params[scope.value]
            case Scope.INSTALLATION:
                return ""

    def _ask_to_log_in(self, request: Request, visit: Visit) -> falcon.HTTPStatus | falcon.HTTPError:
        """Return the redirection to the log-in page, for a fragment as in `_redirection`.

        A session without a refresh token goes straight to the provider, where the person is logged in already.
        """
        ended: ProviderSession | None = getattr(request.context.known_session, "provider", None)
        goes_on = self._provider_sessions is not None and ended is not None and not ended.refresh_token
        if ended is not None and not goes_on:
            visit.notify(visit.gettext("Your session has ended. Log in again."))
        if visit.is_fragment:
            return _redirection(visit, LOG_IN_PATH)
        target = PROVIDER_LOG_IN_PATH if goes_on else LOG_IN_PATH
        if request.method == "GET" and request.relative_uri != "/":
            target += f"?next={quote(request.relative_uri, safe='')}"
        return falcon.HTTPSeeOther(target)

    def _zone_of(self, name: str) -> ZoneInfo:
        try:
            return ZoneInfo(name) if name else self._zone
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return self._zone


def _redirection(visit: Visit, path: str) -> falcon.HTTPStatus:
    """Return the redirection to a page; htmx follows it from a fragment only by the header HX-Redirect."""
    return falcon.HTTPStatus(401, headers={"HX-Redirect": path}) if visit.is_fragment else falcon.HTTPSeeOther(path)


def _session_ended(visit: Visit) -> SessionEndedError:
    return SessionEndedError(
        title=visit.gettext("Your session has ended"),
        description=visit.gettext(
            "Nothing was changed. Log in in another tab. Then come back to this tab, go back to the form and send it"
            " again."
        ),
    )


def local_path(text: str) -> str:
    """Return `text` if it is a path of this console, to go to after the log-in; otherwise "/"."""
    parts = urlsplit(text)
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return text if is_local and text.isprintable() else "/"


# Bounds how many pages and calls are made at once, so that many operators delay the pushes only a little.

AT_ONCE = 16
"""Pages and calls that are made at once. Most of the time of a page passes in other roles."""

MAX_WAITING = 32
"""Requests of one account, or of one address before the log-in, that wait; more are answered with HTTP 503."""

_SLOT = "carillon.slot"
_FILES = "/static/"


class PageLimiter:
    """Falcon middleware that limits how many requests are answered at once, those of different accounts alternately.

    A request holds a slot until its answer is made, or until the browser closes the connection.
    """

    def __init__(self, at_once: int = AT_ONCE, max_waiting: int = MAX_WAITING) -> None:
        self._semaphore = FairSemaphore("pages", at_once, max_waiting=max_waiting)

    async def process_resource(self, request: Request, response: Response, resource: Any, params: Any) -> None:
        """Wait for a slot. BusyError: too many requests of the account wait."""
        if request.path.startswith(_FILES):
            return
        who: Requester = request.context.requester if is_call(request.path) else request.context.visit
        request.scope[_SLOT] = await self._semaphore.acquire(who.actor.name or who.origin.address)

    async def process_response(self, request: Request, response: Response, resource: Any, succeeded: bool) -> None:
        _release(request.scope)


def releasing_slots(application: Application) -> Application:
    """Return the application that also releases the slot of a request that was cancelled."""

    async def releasing(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await application(scope, receive, send)
        finally:
            _release(scope)

    return releasing


def _release(scope: Any) -> None:
    slot: Slot | None = scope.get(_SLOT)
    if slot is not None:
        slot.release()
