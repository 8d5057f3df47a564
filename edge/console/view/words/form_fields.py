"""The fields of the console's forms, by the names that errors of the interface and of the roles give them."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

_V2_PREFIX = re.compile(r"(sendTo\.optfilter\.android|sendTo|msgStyle\.basic|msgStyle\.android|option)\.")
_OTHER_NAMES = {"msgStyle.ios.badge": "ios_badge", "send_time": "send_at", "send_time_interval": "after"}
_INDEX = re.compile(r"\[[^\]]*\]")
_ARTICLE = re.compile(r"click_param\.information\[(\d+)\]\.([\w-]+)")


class FormField(NamedTuple):
    """A field of a form; `label` is the one on the page, in the reader's language."""

    name: str
    label: str


class FormFields:
    """Finds the field that an error is about."""

    def __init__(self, gettext: Callable[[str], str], ngettext: Callable[[str, str, int], str]) -> None:
        self._gettext = gettext
        labels = {**_of_attributes(gettext), **_of_times_opened(ngettext)}
        self._by_path = {
            **_of_pushes(gettext),
            **{name: [FormField(name, label)] for name, label in labels.items()},
            **_of_other_forms(gettext),
        }

    def find(self, path: str, form: Mapping[str, str]) -> FormField | None:
        """Return the field for a path such as `sendTo.tag[0][1]` or `default_period_s`; None: the form has none.

        `form`: the fields that were sent; empty for a form that is sent in the address.
        """
        path = _V2_PREFIX.sub("", path, count=1)
        if path.startswith("click_param"):
            return self._of_click(path, form.get("click_action", ""))
        path = _INDEX.sub("", path)
        fields = self._by_path.get(_OTHER_NAMES.get(path, path), ())
        return next((field for field in fields if not form or field.name in form), fields[0] if fields else None)

    def _of_click(self, path: str, action: str) -> FormField | None:
        _ = self._gettext
        if path == "click_param":
            named = {"2": FormField("url", _("URL to open")), "3": FormField("intent", _("Intent"))}
            return named.get(action)
        if found := _ARTICLE.fullmatch(path):
            labels = {
                "title": _("Title of entry %(number)s"),
                "picture-addr": _("Picture of entry %(number)s"),
                "text-abstract": _("Summary of entry %(number)s"),
                "text-detail": _("Text of entry %(number)s"),
            }
            index, name = int(found[1]), found[2]
            return FormField(f"click6.{index}.{name}", labels[name] % {"number": index + 1}) if name in labels else None
        name = path.removeprefix("click_param.")
        label = _of_click_params(_).get(name)
        return FormField(f"click{action}.{name}", label) if label else None


def _of_pushes(gettext: Callable[[str], str]) -> Mapping[str, list[FormField]]:
    _ = gettext
    texts = [FormField("content", _("Text"))]
    return {
        "content": texts,
        "content.android": texts,
        "content.ios": [FormField("content_ios", _("Another text on iOS")), *texts],
        "title": [FormField("title", _("Title"))],
        "click_action": [FormField("click_action", _("A click"))],
        "badge": [FormField("badge", _("Badge number on Android"))],
        "ios_badge": [FormField("ios_badge", _("Badge number on iOS"))],
        "msgStyle.ios.sound": [FormField("ios_sound", _("Sound file on iOS"))],
        "msgStyle.ios.category": [FormField("category", _("Category on iOS"))],
        "extra": [FormField("extra", _("Extra text for the app"))],
        "stag": [FormField("stag", _("String tags"))],
        "not_stag": [FormField("not_stag", _("Exclude these string tags"))],
        "tag": [FormField("tag", _("Numeric tags"))],
        "not_tag": [FormField("not_tag", _("Exclude these numeric tags"))],
        "alias": [FormField("alias", _("Aliases"))],
        "token": [
            FormField("token_android", _("Tokens of Android devices")),
            FormField("token_ios", _("Tokens of iOS devices")),
        ],
        "token.android": [FormField("token_android", _("Tokens of Android devices"))],
        "token.ios": [FormField("token_ios", _("Tokens of iOS devices"))],
        "send_at": [FormField("send_at", _("Day and time"))],
        "after": [FormField("after", _("Minutes from the moment you send"))],
        "period": [FormField("period", _("Devices that are offline get it within"))],
        "qps": [FormField("qps", _("Messages a second"))],
    }


def _of_attributes(gettext: Callable[[str], str]) -> Mapping[str, str]:
    _ = gettext
    labels = {
        "locate": _("Region"),
        "operator": _("Carrier"),
        "channel": _("Channel"),
        "phone": _("Brand"),
        "osversion": _("OS version"),
        "appversion": _("App version"),
    }
    excluded = {f"{name}_not": _("Exclude: %(name)s") % {"name": label} for name, label in labels.items()}
    return {**labels, **excluded, "model": _("Models"), "model_not": _("Exclude these models")}


def _of_times_opened(ngettext: Callable[[str, str, int], str]) -> Mapping[str, str]:
    return {
        f"activity_{days}": ngettext("Times opened in %(num)s day", "Times opened in %(num)s days", days)
        % {"num": days}
        for days in (1, 7, 30, 90)
    }


def _of_click_params(gettext: Callable[[str], str]) -> Mapping[str, str]:
    _ = gettext
    return {
        "picture-addr": _("Address of the picture"),
        "picture-hyperlink": _("Link of the picture"),
        "jump-seconds": _("Seconds until the page is skipped"),
        "tip-content": _("Tip"),
        "tip-url": _("Link of the tip"),
        "title": _("Title of the pop-up"),
        "top-title": _("Title above all articles"),
        "url": _("Address of the rich-media page"),
    }


def _of_other_forms(gettext: Callable[[str], str]) -> Mapping[str, list[FormField]]:
    _ = gettext
    return {
        "name": [
            FormField("name", _("Name")),
            FormField("token_name", _("Name of the program")),
            FormField("label", _("Display name")),
        ],
        "package": [FormField("package", _("Package"))],
        "default_period_s": [FormField("period", _("Default time to live"))],
        "allow_from": [FormField("allow_from", _("Allowed addresses"))],
        "identity": [FormField("identity", _("Aliases without a proof"))],
        "identity_keys": [FormField("identity_keys", _("Public keys of your server"))],
        "identity_tags": [FormField("identity_tags", _("Tags that address one person"))],
        "the APNs key": [FormField("pem", _("Content of the .p8 file"))],
        "the APNs key id": [FormField("key_id", _("Key id"))],
        "the APNs team id": [FormField("apple_team", _("Apple team id"))],
        "the APNs topic": [FormField("topic", _("Bundle id"))],
        "requests_per_s": [FormField("requests_per_s", _("Requests a second"))],
        "targets_per_s": [FormField("targets_per_s", _("Targets of pushes a second"))],
        "broadcasts_per_day": [FormField("broadcasts_per_day", _("Broadcasts and multicasts per day"))],
        "devices": [FormField("devices", _("Registered devices"))],
        "stored_task_bytes": [FormField("stored_task_bytes", _("Bytes of waiting timed messages"))],
        "registrations_per_minute": [FormField("registrations_per_minute", _("New devices a minute"))],
        "login": [FormField("login", _("Log-in name"))],
        "display_name": [FormField("display_name", _("Display name"))],
        "zone": [FormField("zone", _("Time zone"))],
        "a password": [FormField("password", _("New password")), FormField("new", _("New password"))],
        "code": [FormField("code", _("The code that the app shows"))],
        "reason": [FormField("reason", _("Reason"))],
        "above_devices": [FormField("above_devices", _("Pushes to more devices than this need an approval too"))],
        "share_percent": [
            FormField("share_percent", _("A push is a broadcast from this share of an app's devices on, in percent"))
        ],
        "who": [FormField("who", _("Who"))],
        "push": [FormField("push", _("Message id"))],
        "from": [FormField("first", _("First day"))],
        "to": [FormField("last", _("Last day"))],
    }
