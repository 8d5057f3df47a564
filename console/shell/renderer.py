"""Templates: rendered in the language and time zone of the visit, every value escaped, in slices of time."""

import asyncio
import gzip
import time
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from console.pushes.view import devices_report
from console.shell.error_words import FormProblem
from console.shell.languages import Language
from console.shell.static_files import StaticFiles
from console.shell.visit import Visit
from console.statistics.table import path_of_push
from protos.analytics.v1.analytics_pb2 import ActionEntry, TimelineEntry
from services.domain.approval import share_percent
from services.domain.permissions import Action
from services.process.clock import Clock

# Text for a person who must see all of it: characters that are invisible or turn the text round are named.

_INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Co", "Cn"}
_BLANK = {0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0}
"""Characters that count as letters or symbols and look like nothing."""

_KEPT = {"\n", "\t"}
_JOINERS = {"\u200c", "\u200d"}
"""Characters that writing systems and emoji need between two others; elsewhere they are shown."""


def visible(text: str) -> str:
    """Return the text with each control, format and bidirectional override character as `⟨U+202E⟩`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(text, index) for index in range(len(text)))


def _visible(text: str, index: int) -> str:
    char = text[index]
    if char in _KEPT or (char in _JOINERS and _joins(text, index)):
        return char
    is_hidden = unicodedata.category(char) in _INVISIBLE or ord(char) in _BLANK
    return f"⟨U+{ord(char):04X}⟩" if is_hidden else char


def _joins(text: str, index: int) -> bool:
    """Return whether a joiner stands between two characters beyond ASCII, neither of which is a joiner too."""
    around = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
    return len(around) == 2 and not any(char.isascii() or char in _JOINERS for char in around)


TEMPLATES = Path(__file__).resolve().parent.parent


class View(Protocol):
    """The reader of a template: a visit, or what the visits of many readers have in common."""

    @property
    def language(self) -> Language: ...

    @property
    def zone(self) -> ZoneInfo: ...


class Renderer:
    """A Jinja2 environment in which a name that is not given is an error.

    Every template has `visit`, `notice` and `shown_once`, the functions `static`, `path_of_push`, `devices_report`,
    `advice_for`, `has_wrong_field`, `problems_of`, `share_percent` and `_`, and the filters `moment`, `ago`,
    `duration`, `span`, `detail_line`, `reason`, `service`, `audience`, `audience_of_push`, `audience_names`,
    `condition`, `device_had`, `visible`, `number` and `share_of`.
    """

    def __init__(self, files: StaticFiles, clock: Clock) -> None:
        self._clock = clock
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.i18n"],
            auto_reload=False,
        )
        extension: Any = self._templates
        extension.install_gettext_callables(_gettext, _ngettext, newstyle=True)
        self._templates.globals |= {
            "static": files.url,
            "has_file": files.__contains__,
            "Action": Action,
            "path_of_push": path_of_push,
            "devices_report": devices_report,
            "advice_for": _advice_for,
            "has_wrong_field": _has_wrong_field,
            "problems_of": _problems_of,
            "share_percent": share_percent,
        }
        self._templates.filters |= {
            "moment": _in_language(self._moment),
            "ago": _in_language(lambda visit, ms: visit.language.ago(ms, clock.now_ms())),
            "duration": _in_language(lambda visit, seconds: visit.language.duration(seconds)),
            "span": _in_language(lambda visit, ms: visit.language.span(ms)),
            "detail_line": _in_language(_detail_line),
            "reason": _in_language(lambda visit, recorded: visit.language.reason(recorded)),
            "service": _in_language(
                lambda visit, channel, is_simulated=False: visit.language.service(channel, is_simulated)
            ),
            "audience": _in_language(lambda visit, summary: visit.language.audience(summary)),
            "audience_of_push": _in_language(lambda visit, audience: visit.language.audience.of_push(audience)),
            "audience_names": _in_language(lambda visit, audience: visit.language.audience.named(audience)),
            "condition": _in_language(lambda visit, clause: visit.language.conditions.condition(clause)),
            "device_had": _in_language(lambda visit, clause: visit.language.conditions.found(clause)),
            "visible": visible,
            "number": _in_language(lambda visit, value: visit.language.number(value)),
            "share_of": _in_language(lambda visit, part, whole: visit.language.percent(part, whole)),
        }

    def parts(self, template: str, visit: View, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the page in parts, each rendered when it is asked for."""
        return self._templates.get_template(template).generate({"visit": visit, **values})

    def _moment(self, visit: View, ms: int) -> Markup:
        """Return a <time> with the moment in the reader's zone, and how long ago it was as its title."""
        text = visit.language.moment(ms, visit.zone)
        title = f"{visit.language.ago(ms, self._clock.now_ms())} ({visit.zone.key})"
        return Markup('<time title="{}">{}</time>').format(title, text)


def _detail_line(visit: View, entry: TimelineEntry | ActionEntry) -> str:
    """Return the line about an entry of an audit, with times in the reader's zone."""
    return visit.language.details.line(entry, lambda ms: visit.language.moment(ms, visit.zone))


def _in_language(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is given the visit of the template before its own arguments."""

    @pass_context
    def called(context: Context, *arguments: Any) -> Any:
        return function(context["visit"], *arguments)

    return called


@pass_context
def _advice_for(context: Context, field: str) -> str:
    """Return what is wrong with a field of the form; "" if the page shows no problem, or problems of other fields."""
    return next((each.advice for each in _problems_of(context.get("problem")) if each.field == field), "")


@pass_context
def _has_wrong_field(context: Context) -> bool:
    """Return whether the page shows a problem of a field, which has the focus then."""
    return any(each.field for each in _problems_of(context.get("problem")))


def _problems_of(problem: object) -> Sequence[FormProblem]:
    """Return the problems that a page shows; those without a field have an empty one."""
    if isinstance(problem, FormProblem):
        return problem.all
    return [FormProblem(str(problem))] if problem else []


@pass_context
def _gettext(context: Context, text: str) -> str:
    return str(context["visit"].language.gettext(text))


@pass_context
def _ngettext(context: Context, one: str, many: str, count: int) -> str:
    return str(context["visit"].language.ngettext(one, many, count))


# Renders and compresses pages in slices, after their values are known, so that no other work waits for long.

SLICE_S = 0.00025
"""Time for which a page is rendered before it pauses: other work waits that long at most."""

PAUSE_S = 0.0005
"""The pause, so that other work gets two thirds of the time."""

MIN_GZIP_BYTES = 1000
GZIP_LEVEL = 4


class Template(NamedTuple):
    """A template and its values, which `response.context.page` holds until the page is rendered."""

    name: str
    values: Mapping[str, Any]

    @classmethod
    def shown_now(cls, name: str, visit: Visit, values: Mapping[str, Any]) -> "Template":
        """Return a template that also shows the notice and the secret that the page before has left."""
        notice, shown_once = ("", "") if visit.is_fragment else visit.take_notice()
        return cls(name, {**values, "notice": notice, "shown_once": shown_once})


class SlicedRenderer:
    """Renders in slices with pauses, one page at a time."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._turn = asyncio.Lock()

    async def render(self, template: str, visit: View, values: Mapping[str, Any]) -> str:
        """Return the text of the template."""
        async with self._turn:
            parts = []
            ends = time.perf_counter() + SLICE_S
            for part in self._renderer.parts(template, visit, values):
                parts.append(part)
                if time.perf_counter() >= ends:
                    await asyncio.sleep(PAUSE_S)
                    ends = time.perf_counter() + SLICE_S
            return "".join(parts)


class Rendering:
    """Falcon middleware that renders the page of an answer."""

    def __init__(
        self, renderer: SlicedRenderer, of_fault: Callable[[Request, Response, Exception], Awaitable[None]]
    ) -> None:
        """`of_fault` puts the page for an error in the place of one that cannot be rendered."""
        self._renderer = renderer
        self._of_fault = of_fault

    async def process_response(self, request: Request, response: Response, resource: Any, succeeded: bool) -> None:
        if getattr(response.context, "page", None) is None:
            return
        try:
            text = await self._rendered(response.context.page, request.context.visit)
        except Exception as error:
            await self._of_fault(request, response, error)
            text = await self._rendered(response.context.page, request.context.visit)
        if "gzip" in (request.get_header("Accept-Encoding") or "") and len(text) >= MIN_GZIP_BYTES:
            response.set_header("Content-Encoding", "gzip")
            response.data = await asyncio.to_thread(gzip.compress, text, GZIP_LEVEL, mtime=0)
        else:
            response.data = text
        response.append_header("Vary", "Accept-Encoding")

    async def _rendered(self, page: Template, visit: Visit) -> bytes:
        return (await self._renderer.render(page.name, visit, page.values)).encode()
