"""The page on which values of a field of the form are chosen from a list, with the devices that have each."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import falcon
from falcon.asgi import Request, Response

from console.send.forms import MODEL_FIELDS, TAG_FIELDS, with_values
from console.send.page import SendingPage, problem_to_mend
from console.send.values import CountedValue, Value, ValueList
from console.shell.page import MAX_WORDS, visit_of
from console.shell.visit import Visit
from protos.registry.v1.apps_pb2 import App
from services.domain.identity import identity_rules
from services.errors import CarillonError

LISTED = 50
"""Values of a list: with the fields of the form they stay below the upper bound of a form's fields."""

_VALUE = "value."
_OWN = "values_"

_FIELDS: Mapping[str, str] = {
    **{name: name.removeprefix("not_") for name in TAG_FIELDS},
    **dict.fromkeys(MODEL_FIELDS, "model"),
    **{
        name + suffix: field
        for name, field in (
            ("locate", "region"),
            ("operator", "carrier"),
            ("channel", "channel"),
            ("phone", "brand"),
            ("osversion", "os_version"),
            ("appversion", "app_version"),
        )
        for suffix in ("", "_not")
    },
}
"""The fields of the form that have lists, with the names of their values."""


class Choice(NamedTuple):
    """A value on the page. `name`: of its field in the form."""

    name: str
    text: str
    devices: int
    is_chosen: bool


class ValuesPage(SendingPage):
    """POST of the form of a push with `values_of`, the name of a field, lists the values of the field.

    Its own form carries the form of the push along. With `values_add` it shows that form with the chosen values, with
    `values_back` as it was.
    """

    async def on_post(self, request: Request, response: Response, appkey: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        name = visit.form.get("values_of", "")
        if name not in _FIELDS:
            raise falcon.HTTPBadRequest
        form = {each: text for each, text in visit.form.items() if not each.startswith((_VALUE, _OWN))}
        chosen = [_value(name, each.removeprefix(_VALUE)) for each in visit.form if each.startswith(_VALUE)]
        if "values_back" in visit.form:
            self.show_form(request, response, app, form)
            return
        if "values_add" in visit.form:
            together = visit.form.get("values_together") == "1"
            form[name] = with_values(form.get(name, ""), name, chosen, together=together)
            self.show_form(request, response, app, form)
            return
        words = visit.form.get("values_words", "")[:MAX_WORDS]
        try:
            found, choices = await self._choices(visit, app, name, words, chosen)
        except CarillonError as error:
            self.show_form(request, response, app, form, problem_to_mend(error, visit))
            return
        self.show(
            request,
            response,
            "send/values.html",
            app=app,
            form=form,
            name=name,
            label=_label(name, visit.gettext),
            words=words,
            found=found,
            choices=choices,
            is_of_tags=name in TAG_FIELDS,
            leaves_out_persons=name in TAG_FIELDS and identity_rules(app).has_tags,
        )

    async def _choices(
        self, visit: Visit, app: App, name: str, words: str, chosen: list[Value]
    ) -> tuple[ValueList, list[Choice]]:
        """Return the list, and what the page shows of it: the values that are chosen already come first."""
        apps = self.chosen(visit, app)
        appkeys = apps.appkeys if name in TAG_FIELDS or not apps.android else [apps.android]
        values, field = self.site.audience_values, _FIELDS[name]
        found = await values.listed(appkeys, field, words, LISTED)
        devices = dict(await values.counted(appkeys, field, chosen))
        shown = [(CountedValue(value, devices.get(value, 0)), True) for value in chosen]
        shown += [(each, False) for each in found.values if each.value not in chosen]
        return found, [
            Choice(f"{_VALUE}{_text(value)}", _text(value), devices, is_chosen) for (value, devices), is_chosen in shown
        ]


def _text(value: Value) -> str:
    return f"{value.brand}: {value.text}" if value.brand else value.text


def _value(name: str, text: str) -> Value:
    if name not in MODEL_FIELDS:
        return Value(text)
    brand, _, model = text.partition(": ")
    return Value(model, brand)


def _label(name: str, gettext: Callable[[str], str]) -> str:
    """Return the label of the field, as the form has it."""
    labels = {
        "tag": gettext("Numeric tags"),
        "not_tag": gettext("Exclude these numeric tags"),
        "stag": gettext("String tags"),
        "not_stag": gettext("Exclude these string tags"),
        "model": gettext("Models"),
        "model_not": gettext("Exclude these models"),
        "locate": gettext("Region"),
        "operator": gettext("Carrier"),
        "channel": gettext("Channel"),
        "phone": gettext("Brand"),
        "osversion": gettext("OS version"),
        "appversion": gettext("App version"),
    }
    if name in labels:
        return labels[name]
    return gettext("Exclude: %(name)s") % {"name": labels[name.removesuffix("_not")]}
