"""Errors that a person can mend, in the reader's language and with the field of the form.

Programs get them as they were raised.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

# The fields of the console's forms, by the names that errors of the interface and of the roles give them.

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


_SUBJECT = re.compile(
    r"(?P<path>the APNs (?:key id|team id|key|topic)|a password|[a-zA-Z_][\w.-]*(?:\[[^\]]*\][\w.-]*)*):? (?P<rest>.+)",
    re.DOTALL,
)
_IN_SECONDS = ("option.period", "option.send_time_interval")


class FormProblem(str):
    """The error of a refused form. `field` and `advice`: the form's field and the words beside it, or ""."""

    __slots__ = ("advice", "field")

    field: str
    advice: str

    def __new__(cls, text: str, field: str = "", advice: str = "") -> "FormProblem":
        problem = super().__new__(cls, text)
        problem.field, problem.advice = field, advice
        return problem


class _Wording(NamedTuple):
    """The words for errors of one form. Groups of the pattern are values; those that end in _s are seconds.

    `path`: the field of a sentence that does not begin with one.
    """

    pattern: str
    words: str
    path: str = ""


class Units(Protocol):
    """How a language writes times."""

    def duration(self, seconds: int) -> str: ...

    def span(self, ms: int) -> str: ...


class ProblemWords:
    """Writes errors in one language; an error without a wording keeps its own words."""

    def __init__(self, gettext: Callable[[str], str], fields: FormFields, units: Units) -> None:
        self.gettext = gettext
        self._units = units
        self._fields = fields
        self._sentences = _compiled([*_sentences_about_pushes(gettext), *_other_sentences(gettext)])
        self._advice = _compiled(_advice(gettext))

    def __call__(self, error: str, form: Mapping[str, str]) -> FormProblem:
        """Return the problem of a form with these fields; they are empty for a form that is sent in the address."""
        for pattern, wording in self._sentences:
            if found := pattern.fullmatch(error):
                text = self._filled(wording.words, found)
                field = self._fields.find(wording.path, form)
                return FormProblem(text, field.name, text) if field else FormProblem(text)
        subject = _SUBJECT.fullmatch(error)
        if subject and (field := self._fields.find(subject["path"], form)):
            return self._of_field(field, subject["path"], subject["rest"])
        return FormProblem(error[:1].upper() + error[1:])

    def _of_field(self, field: FormField, path: str, rest: str) -> FormProblem:
        if path in _IN_SECONDS and rest.startswith("must be an integer from"):
            rest += " seconds"
        for pattern, wording in self._advice:
            if found := pattern.fullmatch(rest):
                rest = self._filled(wording.words, found)
                break
        text = self.gettext("%(field)s: %(advice)s") % {"field": field.label, "advice": rest}
        return FormProblem(text, field.name, rest)

    def _filled(self, words: str, found: re.Match[str]) -> str:
        return words % {name: self._value(name, value) for name, value in found.groupdict().items()}

    def _value(self, name: str, value: str) -> str:
        if name == "wait_s":
            return self._units.span(int(value) * 1000)
        if name.endswith("_s"):
            return self._units.duration(int(value))
        return f"{int(value):,}" if re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _compiled(wordings: Sequence[_Wording]) -> list[tuple[re.Pattern[str], _Wording]]:
    return [(re.compile(wording.pattern, re.DOTALL), wording) for wording in wordings]


def _advice(gettext: Callable[[str], str]) -> list[_Wording]:
    """Return the wordings of what follows the field's name in an error."""
    _ = gettext
    return [
        _Wording(r"is missing(:.*)?", _("Fill in this field.")),
        _Wording(r"must name tokens of android or ios", _("Fill in this field.")),
        _Wording(r"must not be empty", _("Fill in this field.")),
        _Wording(r"must not be empty, unless .*badge", _("Fill in this field, or give a badge number.")),
        _Wording(r"must be a whole number", _("Enter a whole number.")),
        _Wording(r"must be a whole number, or empty", _("Enter a whole number, or leave the field empty.")),
        _Wording(r"must be whole numbers, not (?P<text>.*)", _("Enter whole numbers, not %(text)s.")),
        _Wording(
            r"must be an integer from (?P<least>-?\d+) to (?P<most>\d+)",
            _("Enter a whole number from %(least)s to %(most)s."),
        ),
        _Wording(
            r"must be (an integer )?from (?P<least_s>\d+) to (?P<most_s>\d+) seconds",
            _("Enter a time from %(least_s)s to %(most_s)s."),
        ),
        _Wording(r"must be at most (?P<most>\d+); 0 removes the quota", _("Enter %(most)s at most.")),
        _Wording(r"is a number that is out of range", _("The number is too large.")),
        _Wording(r"must be comparisons such as .*", _("Enter comparisons such as >= 3, < 50, each operator once.")),
        _Wording(r"must be lines such as .*", _("Enter lines such as brand: model, model.")),
        _Wording(r"is not a known region: (?P<region>.*)", _("There is no region %(region)s.")),
        _Wording(r"must have 1 to (?P<most>\d+) printable characters", _("Enter 1 to %(most)s characters.")),
        _Wording(r"must have (?P<least>\d+) to (?P<most>\d+) characters", _("Enter %(least)s to %(most)s characters.")),
        _Wording(r"must have at most (?P<most>\d+)( printable)? characters", _("Enter %(most)s characters at most.")),
        _Wording(r"must have 1 to (?P<most>\d+) bytes", _("An entry has more than %(most)s bytes.")),
        _Wording(r"must have at most (?P<most>\d+) entries.*", _("Enter %(most)s entries at most.")),
        _Wording(r"must have at least (?P<least>\d+) entries", _("Enter at least %(least)s entries.")),
        _Wording(r"must not contain NUL", _("The text has a character that cannot be sent (NUL).")),
        _Wording(
            r"must lie in the future, within (?P<days>\d+) days",
            _("Choose a time in the future, within %(days)s days."),
        ),
        _Wording(
            r"this is a private key, .*",
            _("This is a private key, which belongs on your server alone. Give the public one."),
        ),
        _Wording(r"this is no public key in PEM form.*", _("Give a public key in PEM form.")),
        _Wording(
            r"the key must be an EC key on the curve P-256 .*",
            _("Give an EC key on the curve P-256 (ES256) or an Ed25519 key (EdDSA)."),
        ),
        _Wording(r"at most (?P<most>\d+) (keys|names).*", _("Enter %(most)s entries at most.")),
        _Wording(
            r"accept and require need a public key .*",
            _("Proofs are verified by a public key of your server: give one below."),
        ),
        _Wording(
            r"'(?P<text>.*)' (names no tag|is no range of number tags).*",
            _("%(text)s is no string tag, no beginning such as user:*, and no number tag or range."),
        ),
        _Wording(
            r"must be a link that begins with http:// or https://.*",
            _("Enter a link that begins with http:// or https://, without spaces."),
        ),
        _Wording(r"must be a day and a time", _("Choose a day and a time.")),
        _Wording(r"must be a date like .*", _("Choose a day.")),
        _Wording(r"is no iOS token: .*", _("An entry is no iOS token: these have 64 to 200 hexadecimal digits.")),
        _Wording(
            r"is too long: it makes (?P<size>\d+) bytes for iOS devices, of which Apple takes at most (?P<most>\d+)",
            _("The text is too long: it makes %(size)s bytes for iOS devices, of which Apple takes %(most)s at most."),
        ),
        _Wording(
            r"the filter has (?P<count>\d+) tags and values in all, but at most (?P<most>\d+)",
            _("The audience has %(count)s tags and values in all; %(most)s are allowed."),
        ),
        _Wording(
            r"the filter has (?P<size>\d+) bytes in all, but at most (?P<most>\d+)",
            _("The audience has %(size)s bytes in all; %(most)s are allowed."),
        ),
        _Wording(
            r"'(?P<text>[^']*)' is no network: .*",
            _("%(text)s is no address or network. Write them as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32."),
        ),
        _Wording(r"must name at most (?P<most>\d+) networks", _("Enter %(most)s networks at most.")),
        _Wording(
            r"must have 1 to (?P<most>\d+) letters, digits, dots.*",
            _("Enter 1 to %(most)s letters, digits, dots, dashes or underscores, such as com.example.app."),
        ),
        _Wording(
            r"must have 10 capital letters and digits.*", _("Enter 10 capital letters and digits, as Apple shows it.")
        ),
        _Wording(
            r"must be a bundle id of at most (?P<most>\d+) characters.*",
            _("Enter a bundle id of %(most)s characters at most, such as com.example.app."),
        ),
        _Wording(r"is encrypted; .*", _("The key is encrypted. Give the .p8 file as Apple made it.")),
        _Wording(
            r"is no private key in PEM form.*|is not on the curve.*",
            _("This is no key of Apple. Give the content of the file AuthKey_….p8."),
        ),
        _Wording(
            r"must have 1 to (?P<most>\d+) printable characters without spaces and slashes",
            _("Enter 1 to %(most)s characters without spaces and slashes."),
        ),
        _Wording(r"must be the name of a time zone.*", _("Enter the name of a time zone such as Asia/Shanghai.")),
        _Wording(
            r"must not be a repetition or a sequence.*",
            _("Choose a password that is no repetition and no sequence, unlike abcabcabcabc or 123456789012."),
        ),
        _Wording(
            r"must not contain a name that others know: (?P<name>.*)",
            _("Choose a password without “%(name)s”: others know this name."),
        ),
        _Wording(
            r"must not be one of the 10,000 commonest.*",
            _(
                "Choose another password: this is one of the commonest, or one with a few signs more, which are guessed"
                " first."
            ),
        ),
        _Wording(
            r"is not that of this secret.*", _("The code is not right at this time. Check the clock of the phone.")
        ),
    ]


def _sentences_about_pushes(gettext: Callable[[str], str]) -> list[_Wording]:
    _ = gettext
    return [
        _Wording(r"choose who gets the push", _("Choose who gets the push.")),
        _Wording(
            r"choose an app of the other platform that belongs to the same team",
            _("Choose an app of the other platform that belongs to the same team."),
        ),
        _Wording(
            r"sendTo\.tag is missing: name a tag, not_tag, stag or not_stag",
            _("Enter at least one tag, or an attribute of the devices."),
            "stag",
        ),
        _Wording(r"sendTo\.stag and .* cannot be combined .*", _("String tags and numeric tags cannot be combined.")),
        _Wording(
            r"the request is too large: .*",
            _("The push is too large. Shorten its texts, or send it to fewer tokens or aliases."),
        ),
        _Wording(
            r"app \d+ is over its quota of (?P<quota>\d+) requests a second; .* (?P<wait_s>\d+) s",
            _("The app's quota of %(quota)s requests a second is used up. Try again in %(wait_s)s."),
        ),
        _Wording(
            r"app \d+ is over its quota of (?P<quota>\d+) targets a second; .* (?P<wait_s>\d+) s",
            _("The app's quota of %(quota)s targets of pushes a second is used up. Try again in %(wait_s)s."),
        ),
        _Wording(
            r"app \d+ is over its quota of (?P<quota>\d+) broadcasts a day; .* (?P<wait_s>\d+) s",
            _("The app's quota of %(quota)s broadcasts and multicasts per day is used up. Try again in %(wait_s)s."),
        ),
        _Wording(
            r"app \d+ is over its quota of (?P<quota>\d+) stored bytes of timed messages: .*",
            _(
                "The app's quota of %(quota)s bytes of waiting timed messages is used up. Try again when some have been"
                " sent or cancelled."
            ),
        ),
        _Wording(r"app \d+ is paused by the operator; nothing was sent", _("The app is paused. Nothing was sent.")),
        _Wording(
            r"the draft was changed; look .*|the draft was changed meanwhile; look .*",
            _("The draft was changed meanwhile. Look at it again."),
        ),
        _Wording(r"the draft does not wait any more: .*", _("The draft does not wait any more.")),
    ]


def _other_sentences(gettext: Callable[[str], str]) -> list[_Wording]:
    _ = gettext
    later = _("The first day must not be later than the last one.")
    return [
        _Wording(r"from must be earlier than to, and both after 1970|from is later than to", later, "from"),
        _Wording(r"dates lie between (?P<first>\S+) and (?P<last>\S+)", _("Choose days from %(first)s to %(last)s.")),
        _Wording(
            r"from and to are (?P<days>\d+) days, more than (?P<most>\d+)", _("Choose %(most)s days at most."), "from"
        ),
        _Wording(r"choose one of the types and categories", _("Choose one of the types and categories.")),
        _Wording(r"the message id must be a number", _("A message id is a number."), "push"),
        _Wording(r"give days as YYYY-MM-DD", _("Choose a day."), "from"),
        _Wording(
            r"give the message id of the push that is to be divided by a category",
            _("Give the message id of the push that is to be divided by a category."),
            "push",
        ),
        _Wording(r"nobody has the log-in name (?P<login>.*)", _("Nobody has the log-in name %(login)s."), "who"),
        _Wording(r"there is a user '(?P<login>.*)' already", _("There is a user %(login)s already."), "login"),
        _Wording(r"there is a team '(?P<name>.*)' already", _("There is a team %(name)s already."), "name"),
        _Wording(
            r"team .* has a token '(?P<name>.*)' already; revoke it first",
            _("The team has an API token %(name)s already. Revoke it first."),
            "name",
        ),
        _Wording(
            r"no administrator would be left; .*",
            _("No administrator would be left. Make somebody else one first."),
        ),
        _Wording(
            r"a team has at most (?P<most>\d+) test devices; .*",
            _("A team has %(most)s test devices at most. Remove some first."),
        ),
        _Wording(
            r"this link is used, replaced or expired; .*",
            _("This link is used, replaced or expired. Ask an administrator for a new one."),
        ),
        _Wording(
            r"another administrator must remove this second factor, or an operator",
            _("Another administrator must remove this second factor, or an operator."),
        ),
        _Wording(r"another secret key was made meanwhile; .*", _("Another secret key was made meanwhile.")),
        _Wording(r"the password was changed meanwhile; .*", _("The password was changed meanwhile. Log in again.")),
        _Wording(
            r"app \d+ has no APNs key yet; .*",
            _("The app has no key of Apple yet: give the content of the .p8 file, the key id and the Apple team id."),
            "the APNs key",
        ),
    ]
