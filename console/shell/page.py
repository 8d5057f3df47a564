"""The base of all pages, and what they share."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import falcon
import falcon.uri
import msgspec
from falcon.asgi import Request, Response

from console.oidc.log_ins import ProviderLogIns, ProviderSessions
from console.shell.access import SecondFactors
from console.shell.backend import Backend, app_of, visible_apps, visible_teams
from console.shell.error_words import FormProblem
from console.shell.feeds import Feeds
from console.shell.languages import Languages
from console.shell.renderer import SlicedRenderer, Template
from console.shell.sessions import Sessions
from console.shell.static_files import StaticFiles
from console.shell.visit import Visit
from protos.accounts.v1.accounts_pb2 import Team
from protos.registry.v1.apps_pb2 import App
from services.errors import BusyError, CarillonError, Code, DeadlineError, InputError, UnavailableError

MAX_WORDS = 200
AWAY = (BusyError, DeadlineError, UnavailableError)
"""Errors of a call to a role that does not answer at present; what was asked for may have been done."""


@dataclass(frozen=True, kw_only=True)
class Site(Backend):
    """The objects and settings that every page is built with.

    `provider`, `provider_sessions` and `provider_name` are those of the OpenID Connect provider, if there is one.
    """

    files: StaticFiles
    sessions: Sessions
    second_factors: SecondFactors
    languages: Languages
    gateway_url: str
    public_url: str
    v2_url: str
    provider: ProviderLogIns | None
    provider_sessions: ProviderSessions | None
    provider_name: str
    only_administrators_have_passwords: bool
    renderer: SlicedRenderer
    feeds: Feeds

    def link_url(self, token: str) -> str:
        """Return the address at which the user of a one-time token chooses a password."""
        return f"{self.public_url}/link?token={token}"


class Page:
    """A page: `on_get` shows it, `on_post` does what its form asks for and redirects to another page.

    The access that this needs is declared in `routes.py` and was checked before.
    """

    def __init__(self, site: Site) -> None:
        self.site = site

    def show(self, request: Request, response: Response, template: str, status: int = 200, **values: Any) -> None:
        """Answer with a template of `templates/`."""
        response.status = falcon.code_to_http_status(status)
        response.content_type = falcon.MEDIA_HTML
        response.context.page = Template.shown_now(template, visit_of(request), values)

    def app(self, appkey: str) -> App:
        """Return the app of a path. HTTP 404: there is none."""
        return app_of(self.site, appkey)

    def visible_apps(self, visit: Visit) -> list[App]:
        """Return the apps that the user may see, by name."""
        return visible_apps(self.site, visit)

    def visible_teams(self, visit: Visit) -> list[Team]:
        """Return the teams that the user may see, by name."""
        return visible_teams(self.site, visit)


def visit_of(request: Request) -> Visit:
    visit: Visit = request.context.visit
    return visit


def shown_digest(visit: Visit, name: str = "digest") -> bytes:
    """Return the digest of the shown state from the form; empty, which fits no state, if the form has none."""
    try:
        return bytes.fromhex(visit.form.get(name, ""))
    except ValueError:
        return b""


def shown_values(visit: Visit) -> dict[str, str]:
    """Return the values with which the form was shown, {} without its field `shown`. InputError: that is damaged."""
    try:
        return msgspec.json.decode(visit.form.get("shown", "{}"), type=dict[str, str])
    except msgspec.DecodeError:
        raise InputError(Code.FORM_DAMAGED) from None


def shown_text(values: Mapping[str, str]) -> str:
    """Return the values of a form as its hidden field `shown`, so that only fields that the user changes are saved."""
    return msgspec.json.encode(values).decode()


def unknown_app(visit: Visit, appkey: str, apps: Iterable[App]) -> str:
    """Return the words for an appkey of a link or form that none of the apps has; "" if one has it, or none is named.

    The words are the same for apps of other teams and for keys that no app has.
    """
    if not appkey or any(app.appkey == appkey for app in apps):
        return ""
    return visit.gettext("None of your apps has the key %(appkey)s. Choose an app.") % {"appkey": appkey}


def sought_words(request: Request) -> str:
    """Return the words that listed pushes or drafts contain."""
    return (request.get_param("q") or "").strip()[:MAX_WORDS]


def go_to(path: str) -> falcon.HTTPStatus:
    """Return the redirection to another page of the console, for example after an accepted form; raise it."""
    return falcon.HTTPSeeOther(falcon.uri.encode_check_escaped(path))


def problem_of(error: CarillonError, visit: Visit) -> FormProblem:
    """Return the words of an error that the person can mend, and the field of the form. Raises any other error."""
    if error.result not in (400, 401):
        raise error
    return visit.language.problem(error, visit.form)


async def problems_of(
    error: CarillonError,
    visit: Visit,
    accepted: Mapping[str, str],
    check: Callable[[dict[str, str]], Awaitable[object]],
) -> FormProblem:
    """Return the problem of a form with its others: each is what `check` raises once those before it are mended.

    A field is mended by its value in `accepted`, or else by emptying it. `check` says by a CarillonError what keeps a
    form from being accepted, and changes nothing.
    """
    first = problem = problem_of(error, visit)
    form, found = dict(visit.form), {first.field: first}
    while problem.field:
        form[problem.field] = accepted.get(problem.field, "")
        try:
            await check(form)
            break
        except InputError as next_error:
            problem = problem_of(next_error, visit)
        except CarillonError:
            break
        if problem.field in found:
            break
        found[problem.field] = problem
    first.others = [each for each in found.values() if each is not first and each.field]
    return first
