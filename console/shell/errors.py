"""Error pages: every error of a page is answered in the words of the reader, with what to do next."""

from collections.abc import Callable
from typing import Any

import falcon
from falcon.asgi import Request, Response

from console.shell.bearer import is_call
from console.shell.call_problems import RETRY_AFTER_S, ErrorAnswers
from console.shell.middleware import SessionEndedError
from console.shell.page import AWAY
from console.shell.renderer import Template
from console.shell.visit import Visit
from services.errors import CarillonError, ConflictError, InputError, NotFoundError, PermissionDeniedError
from services.process.logs import logger

_STATUS = (
    (NotFoundError, 404),
    (PermissionDeniedError, 403),
    ((InputError, ConflictError), 400),
    (AWAY, 503),
)

_RELOAD_S = 5
"""Interval at which a page that was answered with HTTP 503 is loaded anew in a browser."""

Words = tuple[str, str]


class ErrorPages:
    """Error handlers of the console's Falcon application; those of calls answer with problem details."""

    def __init__(self, of_calls: ErrorAnswers) -> None:
        self._of_calls = of_calls

    def add_to(self, app: Any) -> None:
        app.add_error_handler(Exception, self.of_fault)
        app.add_error_handler(CarillonError, self._of_call)
        app.add_error_handler(falcon.HTTPError, self._of_http)

    async def _of_http(self, request: Request, response: Response, error: falcon.HTTPError, params: Any) -> None:
        if is_call(request.path):
            await self._of_calls.of_http(request, response, error)
            return
        visit: Visit = request.context.visit
        title, text = _words(error.status_code, visit.gettext)
        if error.description:
            title, text = error.title if error.title != error.status else title, error.description
        for name, value in dict(error.headers or {}).items():
            response.set_header(name, value)
        has_ended = isinstance(error, SessionEndedError)
        self._show(request, response, error.status_code, title, text, has_session_ended=has_ended)

    async def _of_call(self, request: Request, response: Response, error: CarillonError, params: Any) -> None:
        if is_call(request.path):
            await self._of_calls.of_call(request, response, error)
            return
        status = next((status for kinds, status in _STATUS if isinstance(error, kinds)), 500)
        if status >= 500:
            logger.error("a page failed", path=request.uri_template, error=f"{type(error).__name__}: {error}")
        if status == 503:
            response.set_header("Retry-After", str(RETRY_AFTER_S))
        visit: Visit = request.context.visit
        title, text = _words(status, visit.gettext)
        if status >= 500 and request.method == "POST":
            text = visit.gettext(
                "It may have been done all the same: look before you repeat it. The log of the service says what is"
                " wrong."
            )
        is_said = status < 500 and str(error)
        self._show(request, response, status, title, visit.language.problem(error, visit.form) if is_said else text)

    async def of_fault(self, request: Request, response: Response, error: Exception, params: Any = None) -> None:
        if is_call(request.path):
            await self._of_calls.of_fault(request, response, error)
            return
        logger.error("a page failed", path=request.uri_template, exc_info=error)
        self._show(request, response, 500, *_words(500, request.context.visit.gettext))

    def _show(
        self,
        request: Request,
        response: Response,
        status: int,
        title: str,
        text: str,
        *,
        has_session_ended: bool = False,
    ) -> None:
        visit: Visit = request.context.visit
        response.status = falcon.code_to_http_status(status)
        response.content_type = falcon.MEDIA_HTML
        template = "shell/error_fragment.html" if visit.is_fragment else "shell/error.html"
        reload_s = _RELOAD_S if status == 503 and request.method == "GET" else 0
        values = {
            "status": status,
            "title": title,
            "text": text,
            "reload_s": reload_s,
            "has_session_ended": has_session_ended,
        }
        response.context.page = Template.shown_now(template, visit, values)


def _words(status: int, gettext: Callable[[str], str]) -> Words:
    match status:
        case 403:
            return gettext("You may not do this"), gettext(
                "Ask an administrator of the team for a role that allows it."
            )
        case 404:
            return gettext("There is no such page"), gettext("The address may be mistyped, or what it named is gone.")
        case 405:
            return gettext("This page takes no such request"), gettext("Go back and use the form of the page.")
        case 503:
            return (
                gettext("A part of the service does not answer at present"),
                gettext("Nothing is lost. Try again in a moment; the log of the service says what is wrong."),
            )
        case _ if status >= 500:
            return gettext("Something went wrong"), gettext(
                "The log of the service says what went wrong. Try again in a moment."
            )
        case _:
            return gettext("This request cannot be read"), gettext("Go back, correct the form and send it again.")
