"""Renders the templates: HTML with every value escaped, in the language and time zone of the visit."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from edge.console.view.languages import Language
from edge.console.view.static_files import StaticFiles
from edge.console.view.statistics_links import path_of_push
from edge.console.view.visible_text import visible
from edge.console.view.words.problems import Problem
from protos.analytics.v1.analytics_pb2 import ActionEntry, TimelineEntry
from services.domain.accounts.approval import share_percent
from services.domain.accounts.permissions import Action
from services.runtime.process.clock import Clock

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


class View(Protocol):
    """Whom a template is rendered for: a visit, or what the visits of many readers have in common."""

    @property
    def language(self) -> Language: ...

    @property
    def zone(self) -> ZoneInfo: ...


class Renderer:
    """A Jinja2 environment in which a name that is not given is an error.

    Every template has `visit`, `notice` and `shown_once`, the functions `static`, `path_of_push`, `advice_for`,
    `share_percent` and `_`, and the filters `moment`, `ago`, `duration`, `span`, `detail_line`, `reason`, `audience`,
    `audience_of_push`, `audience_names`, `condition`, `device_had`, `visible`, `number` and `share_of`.
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
            "advice_for": _advice_for,
            "share_percent": share_percent,
        }
        self._templates.filters |= {
            "moment": _in_language(self._moment),
            "ago": _in_language(lambda visit, ms: visit.language.ago(ms, clock.now_ms())),
            "duration": _in_language(lambda visit, seconds: visit.language.duration(seconds)),
            "span": _in_language(lambda visit, ms: visit.language.span(ms)),
            "detail_line": _in_language(_detail_line),
            "reason": _in_language(lambda visit, recorded: visit.language.reason(recorded)),
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
    """Return what is wrong with a field of the form; "" if the page shows no problem, or one of something else."""
    problem = context.get("problem")
    return problem.advice if isinstance(problem, Problem) and problem.field == field else ""


@pass_context
def _gettext(context: Context, text: str) -> str:
    return str(context["visit"].language.gettext(text))


@pass_context
def _ngettext(context: Context, one: str, many: str, count: int) -> str:
    return str(context["visit"].language.ngettext(one, many, count))
