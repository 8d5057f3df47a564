"""The words for errors that a person can mend, by their codes, and the field of the form that they are about.

Programs get the text of the error.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from services.domain.channel_credentials.fields import CredentialField, CredentialsForm
from services.domain.channel_credentials.forms import FORMS
from services.errors import CarillonError, Code, Field

# The fields of the console's forms, by the paths that errors of the interface and of the roles give them.

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
            **_of_push_forms(gettext),
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
        path = _INDEX.sub("", path).partition(":")[0]
        path = _OTHER_NAMES.get(path, path)
        while path and path not in self._by_path:  # a value in the field, such as `model.brand` or `activity_7.>=`
            path = path.rpartition(".")[0]
        fields = self._by_path.get(path, ())
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


def _of_push_forms(gettext: Callable[[str], str]) -> Mapping[str, list[FormField]]:
    _ = gettext
    texts = [FormField("content", _("Text"))]
    return {
        "content": texts,
        "content.android": texts,
        "content.ios": [FormField("content_ios", _("Another text on iOS")), *texts],
        "title": [FormField("title", _("Title"))],
        "click_action": [FormField("click_action", _("When tapped"))],
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
        "audience_name": [FormField("audience_name", _("Name of the audience"))],
        "send_at": [FormField("send_at", _("Day and time"))],
        "after": [FormField("after", _("Minutes from the moment you send"))],
        "period": [FormField("period", _("Keep for offline devices"))],
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


def _of_channels() -> Iterator[tuple[CredentialsForm, CredentialField]]:
    return ((form, field) for form in FORMS.values() for field in form.fields)


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
        **{form.path(field.name): [FormField(form.path(field.name), _(field.label))] for form, field in _of_channels()},
        "web_origins": [FormField("web_origins", _("Web pages that are devices"))],
        "requests_per_s": [FormField("requests_per_s", _("Requests a second"))],
        "targets_per_s": [FormField("targets_per_s", _("Targets of pushes a second"))],
        "broadcasts_per_day": [FormField("broadcasts_per_day", _("Broadcasts and multicasts per day"))],
        "devices": [FormField("devices", _("Registered devices"))],
        "stored_task_bytes": [FormField("stored_task_bytes", _("Bytes of waiting timed messages"))],
        "registrations_per_minute": [FormField("registrations_per_minute", _("New devices a minute"))],
        "login": [FormField("login", _("Log-in name"))],
        "display_name": [FormField("display_name", _("Display name"))],
        "zone": [FormField("zone", _("Time zone"))],
        "mail_address": [FormField("mail_address", _("Mail address for notices"))],
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


class FormProblem(str):
    """The error of a refused form. `field` and `advice`: the form's field and the words beside it, or "".

    `others`: the further problems of the form, each of a field of its own.
    """

    __slots__ = ("advice", "field", "others")

    field: str
    advice: str
    others: Sequence["FormProblem"]

    def __new__(cls, text: str, field: str = "", advice: str = "") -> "FormProblem":
        problem = super().__new__(cls, text)
        problem.field, problem.advice, problem.others = field, advice, ()
        return problem

    @property
    def all(self) -> Sequence["FormProblem"]:
        """This problem and the others."""
        return (self, *self.others)


class Units(Protocol):
    """How a language writes times."""

    def duration(self, seconds: int) -> str: ...

    def span(self, ms: int) -> str: ...


class ErrorWords:
    """Writes errors in one language; an error that is a text alone keeps its own words."""

    def __init__(self, gettext: Callable[[str], str], fields: FormFields, units: Units) -> None:
        self.gettext = gettext
        self._units = units
        self._fields = fields
        self.by_code = {**_of_fields(gettext), **_of_pushes(gettext), **_of_questions(gettext), **_of_accounts(gettext)}

    def __call__(self, error: CarillonError, form: Mapping[str, str]) -> FormProblem:
        """Return the problem of a form with these fields; they are empty for a form that is sent in the address."""
        raised = str(error)
        if error.code is None:
            return FormProblem(raised[:1].upper() + raised[1:])
        words = self.by_code[error.code] % {name: self._value(name, value) for name, value in error.fields.items()}
        if "at" not in error.code.fields:
            field = self._fields.find(FIELDS.get(error.code, ""), form)
            return FormProblem(words, field.name, words) if field else FormProblem(words)
        if field := self._fields.find(str(error.fields["at"]), form):
            text = self.gettext("%(field)s: %(advice)s") % {"field": field.label, "advice": words}
            return FormProblem(text, field.name, words)
        return FormProblem(raised[:1].upper() + raised[1:])

    def _value(self, name: str, value: Field) -> str:
        match value:
            case int() if name == "wait_s":
                return self._units.span(value * 1000)
            case int() if name.endswith("_s"):
                return self._units.duration(value)
            case int():
                return f"{value:,}"
            case str():
                return value


FIELDS = {
    Code.NO_TAGS: "stag",
    Code.AUDIENCE_EXISTS: "audience_name",
    Code.TIMES_IN_WRONG_ORDER: "from",
    Code.DATES_IN_WRONG_ORDER: "from",
    Code.TOO_MANY_DAYS: "from",
    Code.NO_DAYS: "from",
    Code.NO_MESSAGE_ID: "push",
    Code.NO_MESSAGE_ID_OF_CATEGORY: "push",
    Code.NO_SUCH_LOGIN: "who",
    Code.LOGIN_TAKEN: "login",
    Code.TEAM_NAME_TAKEN: "name",
    Code.TOKEN_NAME_TAKEN: "name",
    Code.NO_APNS_KEY: "the APNs key",
}
"""The fields of forms that errors without a path are about."""


def _of_fields(gettext: Callable[[str], str]) -> Mapping[Code, str]:
    """Return the words beside the field at the error's path."""
    _ = gettext
    return {
        Code.MISSING: _("Fill in this field."),
        Code.NEEDED: _("Fill in this field."),
        Code.EMPTY: _("Fill in this field."),
        Code.EMPTY_WITHOUT_BADGE: _("Fill in this field, or give a badge number."),
        Code.NO_TOKENS: _("Fill in this field."),
        Code.UNKNOWN: _("The service does not know this field."),
        Code.NOT_ALLOWED: _("%(value)s is not possible here."),
        Code.WRONG_TYPE: _("A value of this kind is not possible here."),
        Code.UNREADABLE: _("A value of this kind is not possible here."),
        Code.OUT_OF_RANGE: _("Enter a whole number from %(least)s to %(most)s."),
        Code.OUT_OF_BOUNDS: _("Enter a whole number from %(least)s to %(most)s."),
        Code.SECONDS_OUT_OF_RANGE: _("Enter a time from %(least_s)s to %(most_s)s."),
        Code.TIME_OUT_OF_RANGE: _("Enter a time from %(least_s)s to %(most_s)s."),
        Code.NUMBER_TOO_LARGE: _("The number is too large."),
        Code.NO_WHOLE_NUMBER: _("Enter a whole number."),
        Code.NO_WHOLE_NUMBER_OR_EMPTY: _("Enter a whole number, or leave the field empty."),
        Code.NO_WHOLE_NUMBERS: _("Enter whole numbers, not %(text)s."),
        Code.QUOTA_TOO_LARGE: _("Enter %(most)s at most."),
        Code.NO_COMPARISONS: _("Enter comparisons such as >= 3, < 50, each operator once."),
        Code.NO_MODELS: _("Enter lines such as brand: model, model."),
        Code.UNKNOWN_REGION: _("There is no region %(region)s."),
        Code.NOT_PRINTABLE: _("Enter 1 to %(most)s characters."),
        Code.WRONG_LENGTH: _("Enter %(least)s to %(most)s characters."),
        Code.TOO_LONG: _("Enter %(most)s characters at most."),
        Code.TOO_LONG_OR_NOT_PRINTABLE: _("Enter %(most)s characters at most."),
        Code.WRONG_BYTES: _("An entry has more than %(most)s bytes."),
        Code.TOO_MANY_ENTRIES: _("Enter %(most)s entries at most."),
        Code.FLAT_LIST_TOO_LONG: _("Enter %(most)s entries at most."),
        Code.TOO_FEW_ENTRIES: _("Enter at least %(least)s entries."),
        Code.HAS_NUL: _("The text has a character that cannot be sent (NUL)."),
        Code.NOT_AHEAD: _("Choose a time in the future, within %(days)s days."),
        Code.NO_DAY_AND_TIME: _("Choose a day and a time."),
        Code.NO_MINUTE: _("Choose a day and a time."),
        Code.NO_DATE: _("Choose a day."),
        Code.NO_LINK: _("Enter a link that begins with http:// or https://, without spaces."),
        Code.NO_IOS_TOKEN: _("An entry is no iOS token: these have 64 to 200 hexadecimal digits."),
        Code.PAYLOAD_TOO_LARGE: _(
            "The text is too long: it makes %(size)s bytes for iOS devices, of which Apple takes %(most)s at most."
        ),
        Code.TOO_MANY_TAGS: _("The audience has %(count)s tags and values in all; %(most)s are allowed."),
        Code.FILTER_TOO_LARGE: _("The audience has %(size)s bytes in all; %(most)s are allowed."),
        Code.NO_NETWORK: _(
            "%(text)s is no address or network. Write them as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32."
        ),
        Code.TOO_MANY_NETWORKS: _("Enter %(most)s networks at most."),
        Code.PRIVATE_KEY: _("This is a private key, which belongs on your server alone. Give the public one."),
        Code.NO_PUBLIC_KEY: _("Give a public key in PEM form."),
        Code.WRONG_KIND_OF_KEY: _("Give an EC key on the curve P-256 (ES256) or an Ed25519 key (EdDSA)."),
        Code.KEY_TOO_LONG: _("Enter %(most)s characters at most."),
        Code.TOO_MANY_KEYS: _("Enter %(most)s entries at most."),
        Code.TOO_MANY_NAMES: _("Enter %(most)s entries at most."),
        Code.NO_TAG_RANGE: _("%(text)s is no string tag, no beginning such as user:*, and no number tag or range."),
        Code.NO_TAG: _("%(text)s is no string tag, no beginning such as user:*, and no number tag or range."),
        Code.IDENTITY_WITHOUT_KEY: _("Proofs are verified by a public key of your server: give one below."),
        Code.WRONG_PACKAGE: _(
            "Enter 1 to %(most)s letters, digits, dots, dashes or underscores, such as com.example.app."
        ),
        Code.WRONG_APPLE_ID: _("Enter 10 capital letters and digits, as Apple shows it."),
        Code.WRONG_TOPIC: _("Enter a bundle id of %(most)s characters at most, such as com.example.app."),
        Code.APNS_KEY_ENCRYPTED: _("The key is encrypted. Give the .p8 file as Apple made it."),
        Code.APNS_KEY_UNREADABLE: _("This is no key of Apple. Give the content of the file AuthKey_….p8."),
        Code.APNS_KEY_WRONG_CURVE: _("This is no key of Apple. Give the content of the file AuthKey_….p8."),
        Code.WRONG_CONTACT: _("Enter mailto:NAME@DOMAIN or https://DOMAIN/…, without spaces and brackets."),
        Code.LOCAL_CONTACT: _("Enter a contact at a domain of the internet: Apple refuses localhost and .local."),
        Code.WRONG_PUSH_HOST: _("%(text)s is no HOST, *.DOMAIN, HOST:PORT or *."),
        Code.WRONG_ORIGIN: _(
            "%(text)s is no origin such as https://example.org: in lower case, without a path, and with the port only"
            " if it is not 443."
        ),
        Code.FCM_FILE_NO_JSON: _("This is no JSON. Give the file of a service account as Google made it."),
        Code.FCM_FILE_LACKS_FIELD: _("A field is missing. Give the file of a service account as Google made it."),
        Code.FCM_FILE_OF_ANOTHER_TYPE: _("This is no file of a service account; google-services.json is another one."),
        Code.FCM_FILE_OF_ANOTHER_SERVER: _("The file names another token_uri than %(server)s."),
        Code.FCM_KEY_WRONG: _("The file has no RSA key of %(least)s bits or more. Give it as Google made it."),
        Code.WRONG_LOGIN: _("Enter 1 to %(most)s characters without spaces and slashes."),
        Code.WRONG_MAIL_ADDRESS: _("Enter a mail address such as alice@example.org."),
        Code.UNKNOWN_ZONE: _("Enter the name of a time zone such as Asia/Shanghai."),
        Code.PASSWORD_REPETITION: _(
            "Choose a password that is no repetition and no sequence, unlike abcabcabcabc or 123456789012."
        ),
        Code.PASSWORD_HAS_NAME: _("Choose a password without “%(name)s”: others know this name."),
        Code.PASSWORD_COMMON: _(
            "Choose another password: this is one of the commonest, or one with a few signs more, which are guessed"
            " first."
        ),
        Code.WRONG_TOTP_CODE: _("The code is not right at this time. Check the clock of the phone."),
    }


def _of_pushes(gettext: Callable[[str], str]) -> Mapping[Code, str]:
    _ = gettext
    too_large = _("The push is too large. Shorten its texts, or send it to fewer tokens or aliases.")
    changed = _("The draft was changed meanwhile. Look at it again.")
    return {
        Code.NO_AUDIENCE: _("Choose who gets the push."),
        Code.NO_PARTNER: _("Choose an app of the other platform that belongs to the same team."),
        Code.ATTRIBUTES_OF_ANDROID: _(
            "Attributes are known of Android devices alone. Remove them, or choose no app of iOS: it needs a push of"
            " its own."
        ),
        Code.NO_TAGS: _("Enter at least one tag, or an attribute of the devices."),
        Code.TAGS_OF_BOTH_KINDS: _("String tags and numeric tags cannot be combined."),
        Code.TASK_TOO_LARGE: too_large,
        Code.RECORD_TOO_LARGE: too_large,
        Code.PUSH_TOO_LARGE: too_large,
        Code.OVER_REQUESTS: _("The app's quota of %(quota)s requests a second is used up. Try again in %(wait_s)s."),
        Code.OVER_TARGETS: _(
            "The app's quota of %(quota)s targets of pushes a second is used up. Try again in %(wait_s)s."
        ),
        Code.OVER_BROADCASTS: _(
            "The app's quota of %(quota)s broadcasts and multicasts per day is used up. Try again in %(wait_s)s."
        ),
        Code.OVER_STORED_BYTES: _(
            "The app's quota of %(quota)s bytes of waiting timed messages is used up. Try again when some have been"
            " sent or cancelled."
        ),
        Code.APP_PAUSED: _("The app is paused. Nothing was sent."),
        Code.DRAFT_CHANGED_BEFORE_APPROVAL: changed,
        Code.DRAFT_CHANGED: changed,
        Code.DRAFT_DECIDED: _("The draft does not wait any more."),
        Code.TOO_MANY_PUSHES: _("Too many pushes of the app wait to be sent already. Try again in a moment."),
        Code.NO_SUCH_DRAFT: _("There is no such draft."),
        Code.DRAFT_OF_OTHER_TEAM: _("The draft belongs to another team."),
        Code.OWN_DRAFT: _("You wrote or changed this draft. Ask another approver."),
        Code.DRAFT_TOO_LARGE: too_large,
        Code.TASK_NOT_CANCELLED: _("The task could not be cancelled."),
        Code.TASK_CANCELLED: _("The task was cancelled already."),
        Code.TASK_EXPIRED: _("The task was not sent: its time to live ended while its app was paused."),
        Code.TASK_FAILED: _("The task could not be sent and has ended."),
        Code.TASK_SENT: _("The task was sent already."),
        Code.NO_SUCH_TASK: _("There is no such timed message."),
        Code.KEY_OF_OTHER_PUSH: _("This form was sent before, with other contents. Load the page again."),
    }


def _of_questions(gettext: Callable[[str], str]) -> Mapping[Code, str]:
    """Return the words for questions to analytics."""
    _ = gettext
    later = _("The first day must not be later than the last one.")
    return {
        Code.TIMES_IN_WRONG_ORDER: later,
        Code.DATES_IN_WRONG_ORDER: later,
        Code.DATES_OUT_OF_RANGE: _("Choose days from %(first)s to %(last)s."),
        Code.TOO_MANY_DAYS: _("Choose %(most)s days at most."),
        Code.NO_KIND_OF_STATISTICS: _("Choose one of the types and categories."),
        Code.NO_MESSAGE_ID: _("A message id is a number."),
        Code.NO_MESSAGE_ID_OF_CATEGORY: _("Give the message id of the push that is to be divided by a category."),
        Code.NO_DAYS: _("Choose a day."),
        Code.NO_SUCH_LOGIN: _("Nobody has the log-in name %(login)s."),
        Code.NO_OWN_APP: _("Choose one of your apps."),
        Code.NO_SUCH_BROADCAST: _("No broadcast of this app has the message id %(msgid)s."),
        Code.NO_SUCH_PUSH: _("There is no push with the message id %(msgid)s."),
        Code.LOG_WITHOUT_APP: _("There is no such app."),
        Code.LOG_WITHOUT_DEVICE: _("The app has no device with this token."),
    }


def _of_accounts(gettext: Callable[[str], str]) -> Mapping[Code, str]:
    """Return the words for changes of accounts and apps."""
    _ = gettext
    return {
        Code.LOGIN_TAKEN: _("There is a user %(login)s already."),
        Code.TEAM_NAME_TAKEN: _("There is a team %(name)s already."),
        Code.TOKEN_NAME_TAKEN: _("The team has an API token %(name)s already. Revoke it first."),
        Code.NO_ADMINISTRATOR_LEFT: _("No administrator would be left. Make somebody else one first."),
        Code.TOO_MANY_TEST_DEVICES: _("A team has %(most)s test devices at most. Remove some first."),
        Code.LINK_USED: _("This link is used, replaced or expired. Ask an administrator for a new one."),
        Code.OWN_SECOND_FACTOR: _("Another administrator must remove this second factor, or an operator."),
        Code.SECRET_CHANGED: _("Another secret key was made meanwhile."),
        Code.PASSWORD_CHANGED: _("The password was changed meanwhile. Log in again."),
        Code.NO_APNS_KEY: _(
            "The app has no key of Apple yet: give the content of the .p8 file, the key id and the Apple team id."
        ),
        Code.MAY_NOT: _("Your account may not do this."),
        Code.TOO_MANY_CHANGES: _("%(most)s changes wait for a confirmation already. Decide about some of them first."),
        Code.ROLES_OF_PROVIDER: _("The roles of %(login)s follow from the groups of the log-in provider."),
        Code.NO_PASSWORD: _("%(login)s logs in with the log-in provider and has no password."),
        Code.USER_DISABLED: _("%(login)s is disabled. Enable the user first."),
        Code.NO_OWN_CODES: _(
            "Only a user with a password has one-time codes. The log-in provider asks for those of its own."
        ),
        Code.SECOND_FACTOR_EXISTS: _("There is a second factor already. An administrator can remove it."),
        Code.NO_SUCH_USER: _("There is no such user."),
        Code.NO_SUCH_TEAM: _("There is no such team."),
        Code.NO_SUCH_APP: _("There is no such app."),
        Code.NO_SUCH_TOKEN: _("There is no such API token, or it is revoked."),
        Code.TEAM_WITHOUT_APP: _("This team has no such app any more."),
        Code.TEAM_WITHOUT_TOKEN: _("This team has no such API token any more."),
        Code.APP_OF_OTHER_TEAM: _("App %(appkey)s does not belong to the team."),
        Code.CHANGE_DECIDED: _("This change does not wait any more: it was decided, or has expired."),
        Code.OWN_CHANGE: _("You proposed this change. Ask another administrator to confirm it."),
        Code.CHANGE_OUTDATED: _("What this change is about was changed meanwhile. Propose it again."),
        Code.NO_PROOF_CHOICE: _("Choose whether aliases must be proven."),
        Code.NO_UNIT: _("Choose a unit of the time to live."),
        Code.NO_APNS_ENVIRONMENT: _("Choose an environment of Apple."),
        Code.FORM_DAMAGED: _("The form is damaged. Load the page again."),
        Code.APP_WITHOUT_DEVICE: _("The app has no device with this token."),
        Code.WRONG_RECEIVER: _("The receiver cannot have this URL: %(problem)s."),
        Code.TOO_MANY_WEBHOOKS: _("An app or a team has %(most)s webhooks at most. Remove one first."),
        Code.CHAT_WITHOUT_KINDS: _("A webhook to a chat service names the kinds of its events: people read each one."),
        Code.NO_SUCH_WEBHOOK: _("The app or team has no webhook with this id."),
        Code.NO_SUCH_AUDIENCE: _("The app has no saved audience %(name)s."),
        Code.AUDIENCE_EXISTS: _("The app has a saved audience %(name)s already. Choose another name, or replace it."),
        Code.TOO_MANY_AUDIENCES: _("An app has %(most)s saved audiences at most. Remove one first."),
        Code.NO_FILTER: _("A saved audience is made of tags or attributes of devices."),
        Code.WEBHOOK_NOT_KNOWN: _("The app or team has no webhook with this id, or it was made just now: try again."),
    }
