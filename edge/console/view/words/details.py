"""The details of timelines and reasons in the reader's language.

Facts and the answers to programs keep the words with which they were recorded.
"""

import re
from collections.abc import Callable
from functools import lru_cache

_CACHED = 4096
_COUNTED = re.compile(r"(?P<reason>.+): (?P<count>\d+)")
_ATTRIBUTES = "model|region|carrier|channel|sdk_version|brand|resolution|os_version|app_version"
_ATTRIBUTE = re.compile(rf"(?P<name>{_ATTRIBUTES}) (?P<value>.+)")
_ASKED = re.compile(r"(?P<command>[a-z]+(?: [a-z]+){0,2})(?:: (?P<change>.+))?")

Gettext = Callable[[str], str]
Words = list[tuple[str, str]]
"""Regular expressions, and the texts in their place, which name their groups."""


class DetailWords:
    """Translates texts that analytics makes of facts. What matches no expression stays as it is."""

    def __init__(self, gettext: Gettext) -> None:
        self._of_parts = [*_compiled(_reworded(gettext)), *_others(_part_texts(gettext), _part_texts(str))]
        self._names = _other_names(_attribute_names(gettext), _attribute_names(str))
        self._commands = _other_names(_command_names(gettext), _command_names(str))
        self._part = lru_cache(_CACHED)(self._translated_part)

    def __call__(self, text: str) -> str:
        """Return the text with each of its parts, which commas separate, in the reader's language."""
        return ", ".join(self._part(part) for part in text.split(", "))

    def _translated_part(self, part: str) -> str:
        for expression, words in self._of_parts:
            if found := expression.fullmatch(part):
                return words % found.groupdict()
        if (attribute := _ATTRIBUTE.fullmatch(part)) and attribute["name"] in self._names:
            return f"{self._names[attribute['name']]} {attribute['value']}"
        if (asked := _ASKED.fullmatch(part)) and asked["command"] in self._commands:
            return ": ".join(filter(None, (self._commands[asked["command"]], self._part(asked["change"] or ""))))
        if counted := _COUNTED.fullmatch(part):
            return f"{self._part(counted['reason'])}: {counted['count']}"
        return part


def _compiled(words: Words) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(expression), text) for expression, text in words]


def _others(words: Words, english: Words) -> list[tuple[re.Pattern[str], str]]:
    """Return those whose text differs from the English one, which says what the recorded text says."""
    return _compiled([own for own, other in zip(words, english, strict=True) if own != other])


def _other_names(names: dict[str, str], english: dict[str, str]) -> dict[str, str]:
    return {name: own for name, own in names.items() if own != english[name]}


def _attribute_names(gettext: Gettext) -> dict[str, str]:
    _ = gettext
    return {
        "model": _("Model"),
        "region": _("Region"),
        "carrier": _("Carrier"),
        "channel": _("Channel"),
        "sdk_version": _("SDK version"),
        "brand": _("Brand"),
        "resolution": _("Resolution"),
        "os_version": _("OS version"),
        "app_version": _("App version"),
    }


def _command_names(gettext: Gettext) -> dict[str, str]:
    """Return what was asked for in commands to devices."""
    _ = gettext
    return {
        "register": _("register"),
        "begin session": _("begin a session"),
        "set alias": _("set the alias"),
        "clear alias": _("clear the alias"),
        "add tags": _("add tags"),
        "remove tags": _("remove tags"),
        "add stags": _("add string tags"),
        "remove stags": _("remove string tags"),
        "set attributes": _("set attributes"),
        "remove": _("remove the device"),
        "revoke key": _("revoke the key"),
        "revoke all keys": _("revoke all keys"),
    }


def _reworded(gettext: Gettext) -> Words:
    """Recorded texts for which the console has plainer words in every language."""
    _ = gettext
    return [
        (r"mailbox full", _("more than 100 messages were waiting")),
        (r"everyone", _("all devices")),
    ]


def _part_texts(gettext: Gettext) -> Words:
    """Parts of the details of timelines, and reasons."""
    _ = gettext
    return [
        (r"in (?P<count>\d+) of (?P<all>\d+) partitions", _("in %(count)s of %(all)s partitions")),
        (r"in (?P<count>\d+) partitions? it never starts", _("in %(count)s partitions it never starts")),
        (r"in (?P<count>\d+) partitions?", _("in %(count)s partitions")),
        (r"in the device's partition", _("in the device's partition")),
        (r"until (?P<time>\d{4}-.*)", _("until %(time)s")),
        (r"due (?P<time>\d{4}-.*)", _("due %(time)s")),
        (
            r"accepted through (?P<interface>\S+) from (?P<address>\S+)",
            _("accepted through %(interface)s from %(address)s"),
        ),
        (r"accepted through (?P<interface>\S+)", _("accepted through %(interface)s")),
        (r"through (?P<interface>\S+) from (?P<address>\S+)", _("through %(interface)s from %(address)s")),
        (r"through (?P<interface>\S+)", _("through %(interface)s")),
        (r"by (?P<writer>\S+)", _("by %(writer)s")),
        (r"request (?P<id>\S+)", _("request %(id)s")),
        (r"message (?P<id>\d+)", _("message %(id)s")),
        (r"push (?P<id>\d+)", _("push %(id)s")),
        (r"task (?P<id>\S+)", _("task %(id)s")),
        (r"draft (?P<id>\S+)", _("draft %(id)s")),
        (r"broadcast", _("broadcast")),
        (r"multicast", _("multicast")),
        (r"unicast", _("unicast")),
        (r"password", _("password")),
        (r"wrong password", _("wrong password")),
        (r"one time code", _("one-time code")),
        (r"recovery code", _("recovery code")),
        (r"(?P<count>\d+) devices?", _("%(count)s devices")),
        (
            r"the log has the record more than once; it counted once",
            _("the log has the record more than once; it counted once"),
        ),
        (r"(?P<count>\d+) attempts failed", _("%(count)s attempts failed")),
        (r"the last one with: (?P<error>.*)", _("the last one with: %(error)s")),
        (r"internal error", _("internal error")),
        (
            r"its time to live was over before targeting resolved its audience(?P<cause>.*)",
            _("its time to live was over before targeting resolved its audience%(cause)s"),
        ),
        (r"outcomes are kept for (?P<days>\d+) days", _("outcomes are kept for %(days)s days")),
        (r"no alias", _("no alias")),
        (r"alias (?P<alias>.+)", _("alias %(alias)s")),
        (r"unregistered", _("unregistered")),
        (r"idle", _("silent for too long")),
        (r"unacknowledged", _("acknowledged nothing")),
        (r"slow", _("took in too little")),
        (r"gone", _("did not answer")),
        (r"replaced", _("replaced by another connection")),
        (r"draining", _("the gateway stopped")),
    ]
