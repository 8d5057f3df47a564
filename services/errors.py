"""The tree of errors with which requests and calls between roles are answered.

    CarillonError              status INTERNAL            result 500
    ├── InputError             status INVALID_ARGUMENT    result 400   the caller's fault; says which field
    ├── NotFoundError          status NOT_FOUND           result 400   no such app, device, push or task
    ├── ConflictError          status FAILED_PRECONDITION result 400   not possible in the present state
    ├── SignError              status UNAUTHENTICATED     result 401   wrong sign, unknown app
    ├── BusyError              status RESOURCE_EXHAUSTED  result 500   a bounded queue is full; try again
    ├── UnavailableError       status UNAVAILABLE         result 500   a role or store does not answer; try again
    │   └── NotOwnerError      status ABORTED             result 500   nothing was done; another process answers
    ├── DeadlineError          status DEADLINE_EXCEEDED   result 500   outcome unknown; repeat with the same id
    ├── PermissionDeniedError  status PERMISSION_DENIED   result 500   the role or the account may not do this
    ├── ForbiddenError         not in calls               result 403   a pause or a setting of the app forbids it
    └── RetryLaterError                                                says when to try again
        ├── TooManyRequestsError   not in calls           result 429   over a limit
        └── TryLaterError          not in calls           result 503   a role that answers queries cannot answer now

`status` names the gRPC status that carries the error between roles, `result` is the number in the public answer. The
results 403, 429 and 503 are also the HTTP status of the answer.

An error that a person can mend has a `Code` and fields: numbers, names, and the path `at` of the field that is wrong.
Its text is made of the code's template here, so programs, logs and commands read English; the console has words for
each code in each of its languages. Calls between roles carry both. All other errors are a text alone.
"""

# ruff: noqa: S105  # names of codes, not secrets

import string
from collections.abc import Mapping
from enum import Enum, unique

Field = int | str


@unique
class Code(Enum):
    """A kind of error that a person can mend. The value is the English text with the names of its fields.

    The name is what calls between roles carry, so it never changes; another meaning gets another code. `at` is the
    path of a field in a request, such as `sendTo.tag[0][1]`; fields that end in `_s` are seconds.
    """

    # About the field at the path `at`.
    MISSING = "{at} is missing"
    NEEDED = "{at} is missing: {by} needs it"
    EMPTY = "{at} must not be empty"
    EMPTY_WITHOUT_BADGE = "{at} must not be empty, unless a notification for iOS has a badge"
    NO_TOKENS = "{at} must name tokens of android or ios"
    UNKNOWN = "{at} is not known"
    NOT_ALLOWED = "{at} must not be {value}"
    WRONG_TYPE = "{at} must be {kinds}"
    UNREADABLE = "{at}: {problem}"
    OUT_OF_RANGE = "{at} must be an integer from {least} to {most}"
    OUT_OF_BOUNDS = "{at} must be from {least} to {most}"
    SECONDS_OUT_OF_RANGE = "{at} must be an integer from {least_s} to {most_s}"
    TIME_OUT_OF_RANGE = "{at} must be from {least_s} to {most_s} seconds"
    NUMBER_TOO_LARGE = "{at} is a number that is out of range"
    NO_WHOLE_NUMBER = "{at} must be a whole number"
    NO_WHOLE_NUMBER_OR_EMPTY = "{at} must be a whole number, or empty"
    NO_WHOLE_NUMBERS = "{at} must be whole numbers, not {text}"
    QUOTA_TOO_LARGE = "{at} must be at most {most}; 0 removes the quota"
    NO_COMPARISONS = "{at} must be comparisons such as >= 3, < 50, each operator once"
    NO_MODELS = "{at} must be lines such as brand: model, model"
    UNKNOWN_REGION = "{at} is not a known region: {region}"
    NOT_PRINTABLE = "{at} must have 1 to {most} printable characters"
    WRONG_LENGTH = "{at} must have {least} to {most} characters"
    TOO_LONG = "{at} must have at most {most} characters"
    TOO_LONG_OR_NOT_PRINTABLE = "{at} must have at most {most} printable characters"
    WRONG_BYTES = "{at} must have 1 to {most} bytes"
    TOO_MANY_ENTRIES = "{at} must have at most {most} entries"
    FLAT_LIST_TOO_LONG = "{at} must have at most {most} entries, because a flat list is one group"
    TOO_FEW_ENTRIES = "{at} must have at least {least} entries"
    HAS_NUL = "{at} must not contain NUL"
    NOT_AHEAD = "{at} must lie in the future, within {days} days"
    NO_DAY_AND_TIME = "{at} must be a day and a time"
    NO_MINUTE = "{at} must be a time like 2030-01-31 18:05"
    NO_DATE = "{at} must be a date like 2026-01-31"
    NO_LINK = "{at} must be a link that begins with http:// or https://, without spaces"
    NO_IOS_TOKEN = "{at} is no iOS token: it must have 64 to 200 hexadecimal digits"
    PAYLOAD_TOO_LARGE = "{at} is too long: it makes {size} bytes for iOS devices, of which Apple takes at most {most}"
    TOO_MANY_TAGS = "{at}: the filter has {count} tags and values in all, but at most {most}"
    FILTER_TOO_LARGE = "{at}: the filter has {size} bytes in all, but at most {most}"
    NO_NETWORK = "{at}: {text!r} is no network: {problem}; write 192.0.2.0/24 or 2001:db8::/32"
    TOO_MANY_NETWORKS = "{at} must name at most {most} networks"
    PRIVATE_KEY = (
        "{at}: this is a private key, which belongs on your server alone; give the public one, as"
        " `openssl pkey -in private.pem -pubout` prints it"
    )
    NO_PUBLIC_KEY = (
        "{at}: this is no public key in PEM form (-----BEGIN PUBLIC KEY-----); give one as"
        " `openssl pkey -in private.pem -pubout` prints it"
    )
    WRONG_KIND_OF_KEY = "{at}: the key must be an EC key on the curve P-256 (for ES256) or an Ed25519 key (for EdDSA)"
    KEY_TOO_LONG = "{at}: a public key has at most {most} characters"
    TOO_MANY_KEYS = "{at}: at most {most} keys, the present one and its successor"
    TOO_MANY_NAMES = "{at}: at most {most} names and ranges"
    NO_TAG_RANGE = "{at}: {text!r} is no range of number tags from {least} to {most}"
    NO_TAG = (
        "{at}: {text!r} names no tag: give a string tag of at most {most} bytes, its beginning with a *"
        " behind it, such as user:*, a number tag, or a range of them, such as 30000..32767"
    )
    IDENTITY_WITHOUT_KEY = (
        "{at} accept and require need a public key of the app's server (identity_keys), by which proofs are"
        " verified; to remove the keys set identity off too"
    )
    WRONG_PACKAGE = "{at} must have 1 to {most} letters, digits, dots, dashes or underscores, like com.example.app"
    WRONG_APPLE_ID = "{at} must have 10 capital letters and digits, as Apple shows it"
    WRONG_TOPIC = "{at} must be a bundle id of at most {most} characters, like com.example.app"
    APNS_KEY_ENCRYPTED = "{at} is encrypted; give the .p8 file as Apple made it"
    APNS_KEY_UNREADABLE = "{at} is no private key in PEM form, as Apple's AuthKey_….p8 is"
    APNS_KEY_WRONG_CURVE = "{at} is not on the curve P-256, as Apple's are"
    WRONG_CONTACT = "{at} must be mailto:NAME@DOMAIN or https://DOMAIN/…, without spaces and brackets"
    LOCAL_CONTACT = "{at} must be at a domain of the internet: Apple refuses localhost and .local"
    WRONG_PUSH_HOST = "{at}: {text} is no HOST, *.DOMAIN, HOST:PORT or *: {problem}"
    WRONG_ORIGIN = (
        "{at}: {text} is no origin as browsers send it, such as https://example.org: in lower case, without a path, and"
        " with the port only if it is another one than 443"
    )
    FCM_FILE_NO_JSON = "{at} is no JSON; give the file of a service account, as it is"
    FCM_FILE_LACKS_FIELD = "{at} lacks a field; give the JSON file of a service account, as it is"
    FCM_FILE_OF_ANOTHER_TYPE = "{at} is of another type than service_account (google-services.json is not it)"
    FCM_FILE_OF_ANOTHER_SERVER = "{at} names another token_uri than {server}"
    FCM_KEY_WRONG = "{at} has no RSA key of {least} bits or more in PEM form"
    WRONG_LOGIN = "{at} must have 1 to {most} printable characters without spaces and slashes"
    WRONG_MAIL_ADDRESS = "{at} must be a mail address such as alice@example.org"
    UNKNOWN_ZONE = "{at} must be the name of a time zone such as Asia/Shanghai"
    PASSWORD_REPETITION = "{at} must not be a repetition or a sequence, such as abcabcabcabc or 123456789012"
    PASSWORD_HAS_NAME = "{at} must not contain a name that others know: {name}"
    PASSWORD_COMMON = "{at} must not be one of the 10,000 commonest, or one of them with a few signs more"
    WRONG_TOTP_CODE = "{at} is not that of this secret at this time; check the clock of the phone"

    # About pushes.
    NO_AUDIENCE = "choose who gets the push"
    NO_PARTNER = "choose an app of the other platform that belongs to the same team"
    ATTRIBUTES_OF_ANDROID = "attributes are known of Android devices alone; iOS needs a push of its own"
    NO_TAGS = "sendTo.tag is missing: name a tag, not_tag, stag or not_stag"
    TAGS_OF_BOTH_KINDS = "sendTo.stag and sendTo.not_stag cannot be combined with sendTo.tag and sendTo.not_tag"
    TASK_TOO_LARGE = "the request is too large: it makes a task of {size} bytes"
    RECORD_TOO_LARGE = "the request is too large: it makes a record of {size} bytes"
    PUSH_TOO_LARGE = (
        "the request is too large: it makes a record of {size} bytes, of which the event log takes at most"
        " {most}; the largest part is {part} with {part_size} bytes"
    )
    OVER_REQUESTS = "app {appkey} is over its quota of {quota} requests a second; try again in {wait_s} s"
    OVER_TARGETS = "app {appkey} is over its quota of {quota} targets a second; try again in {wait_s} s"
    OVER_BROADCASTS = "app {appkey} is over its quota of {quota} broadcasts a day; try again in {wait_s} s"
    OVER_STORED_BYTES = (
        "app {appkey} is over its quota of {quota} stored bytes of timed messages: {stored} are stored and"
        " this one needs {size}; try again when some have been sent or cancelled"
    )
    APP_PAUSED = "app {appkey} is paused by the operator; nothing was sent"
    DRAFT_CHANGED_BEFORE_APPROVAL = "the draft was changed; look at it again before you approve it"
    DRAFT_CHANGED = "the draft was changed meanwhile; look at it again before you change it"
    DRAFT_DECIDED = "the draft does not wait any more: it is {state}"
    TOO_MANY_PUSHES = "too many pushes of app {appkey} wait to be sent already; try again"
    NO_SUCH_DRAFT = "there is no draft with id {draft_id!r}"
    DRAFT_OF_OTHER_TEAM = "the draft belongs to another team"
    OWN_DRAFT = "whoever wrote or changed a draft may not approve it; ask another approver"
    DRAFT_TOO_LARGE = "the draft has {size} bytes, more than {most}; send to fewer tokens"
    TASK_NOT_CANCELLED = "task_key: the task could not be cancelled"
    TASK_CANCELLED = "task_key: the task was cancelled already"
    TASK_EXPIRED = "task_key: the task was not sent; its time to live ended while its app was paused"
    TASK_FAILED = "task_key: the task could not be sent and has ended"
    TASK_SENT = "task_key: the task was sent already"
    NO_SUCH_TASK = "task_key: there is no such timed task of these apps"
    KEY_OF_OTHER_PUSH = "the key was used for another push, which is a draft"

    # About questions to analytics.
    TIMES_IN_WRONG_ORDER = "from must be earlier than to, and both after 1970"
    DATES_IN_WRONG_ORDER = "from is later than to"
    DATES_OUT_OF_RANGE = "dates lie between {first} and {last}"
    TOO_MANY_DAYS = "from and to are {days} days, more than {most}"
    NO_KIND_OF_STATISTICS = "choose one of the types and categories"
    NO_MESSAGE_ID = "the message id must be a number"
    NO_MESSAGE_ID_OF_CATEGORY = "give the message id of the push that is to be divided by a category"
    NO_DAYS = "give days as YYYY-MM-DD"
    NO_SUCH_LOGIN = "nobody has the log-in name {login}"
    NO_OWN_APP = "choose one of your apps"
    NO_SUCH_BROADCAST = "no broadcast of this app has the message id {msgid}"
    NO_SUCH_PUSH = "the event log knows no push with the message id {msgid}"
    LOG_WITHOUT_APP = "the event log knows no app with the appkey {appkey!r}"
    LOG_WITHOUT_DEVICE = "the event log knows no device with this token in this app"

    # About accounts and apps.
    LOGIN_TAKEN = "there is a user {login!r} already"
    TEAM_NAME_TAKEN = "there is a team {name!r} already"
    TOKEN_NAME_TAKEN = "team {team} has a token {name!r} already; revoke it first"
    NO_ADMINISTRATOR_LEFT = "no administrator would be left; make somebody else one first"
    TOO_MANY_TEST_DEVICES = "a team has at most {most} test devices; remove some first"
    LINK_USED = "this link is used, replaced or expired; ask an administrator for a new one"
    OWN_SECOND_FACTOR = "another administrator must remove this second factor, or an operator"
    SECRET_CHANGED = "another secret key was made meanwhile; look at the app before you make one more"
    PASSWORD_CHANGED = "the password was changed meanwhile; log in again"
    NO_APNS_KEY = "app {appkey} has no APNs key yet; at first give {missing} too"
    MAY_NOT = "this account may not {action}"
    TOO_MANY_CHANGES = "{most} changes wait for a confirmation already; decide about some of them first"
    ROLES_OF_PROVIDER = "the roles of {login!r} follow from the groups of the OpenID Connect provider"
    NO_PASSWORD = "{login!r} logs in by OpenID Connect and has no password"
    USER_DISABLED = "{login!r} is disabled; enable the user first"
    NO_OWN_CODES = "only a user with a password has one-time codes; the provider asks for those of its own"
    SECOND_FACTOR_EXISTS = "there is a second factor already; an administrator can remove it"
    NO_SUCH_USER = "there is no user with id {user_id!r}"
    NO_SUCH_TEAM = "there is no team with id {team_id!r}"
    NO_SUCH_APP = "there is no app with appkey {appkey!r}"
    NO_SUCH_TOKEN = "there is no API token with id {token_id!r}, or it is revoked"
    TEAM_WITHOUT_APP = "this team has no such app any more"
    TEAM_WITHOUT_TOKEN = "this team has no such API token any more"
    APP_OF_OTHER_TEAM = "app {appkey} does not belong to the team"
    CHANGE_DECIDED = "this change does not wait any more: it was decided, or has expired"
    OWN_CHANGE = "whoever proposed a change may not confirm it; ask another administrator"
    CHANGE_OUTDATED = "what this change is about was changed meanwhile; propose it again"
    NO_PROOF_CHOICE = "choose whether aliases must be proven"
    NO_UNIT = "choose a unit of the time to live"
    NO_APNS_ENVIRONMENT = "choose an environment of Apple"
    FORM_DAMAGED = "the form is damaged; load the page again"
    APP_WITHOUT_DEVICE = "app {appkey} has no device with this token"
    WRONG_RECEIVER = "url: {problem}"
    TOO_MANY_WEBHOOKS = "an app or a team has at most {most} webhooks"
    CHAT_WITHOUT_KINDS = "a webhook to a chat service names the kinds of its events: people read each of them"
    NO_SUCH_AUDIENCE = "app {appkey} has no saved audience {name!r}"
    AUDIENCE_EXISTS = "app {appkey} has a saved audience {name!r} already"
    TOO_MANY_AUDIENCES = "an app has {most} saved audiences at most; remove one first"
    NO_FILTER = "a saved audience is made of tags or attributes of devices: its userScope is 6, 7 or 8"
    NO_SUCH_WEBHOOK = "{scope} has no webhook {webhook_id!r}"
    WEBHOOK_NOT_KNOWN = "{scope} has no webhook {webhook_id!r}, or it was made just now"

    def __init__(self, template: str) -> None:
        self.fields = frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name)


class CarillonError(Exception):
    """`code` and `fields` say what is wrong; None and no fields for an error that is a text alone."""

    status = "INTERNAL"
    result = 500
    code: Code | None = None
    fields: Mapping[str, Field] = {}

    def __init__(self, what: Code | str = "", **fields: Field) -> None:
        if isinstance(what, Code):
            self.code, self.fields = what, fields
            what = what.value.format_map(fields)
        super().__init__(what)


class InputError(CarillonError):
    status = "INVALID_ARGUMENT"
    result = 400


class NotFoundError(CarillonError):
    status = "NOT_FOUND"
    result = 400


class ConflictError(CarillonError):
    status = "FAILED_PRECONDITION"
    result = 400


class SignError(CarillonError):
    status = "UNAUTHENTICATED"
    result = 401


class BusyError(CarillonError):
    status = "RESOURCE_EXHAUSTED"


class UnavailableError(CarillonError):
    status = "UNAVAILABLE"


class NotOwnerError(UnavailableError):
    """The process stands by, or does not answer yet. Nothing was done, so any call may be made again."""

    status = "ABORTED"


class DeadlineError(CarillonError):
    status = "DEADLINE_EXCEEDED"


class PermissionDeniedError(CarillonError):
    status = "PERMISSION_DENIED"


class ForbiddenError(CarillonError):
    """The app is paused, or its settings forbid the address, or demand a proof or a replay-safe sign: HTTP 403."""

    result = 403


class RetryLaterError(CarillonError):
    """The answer has the HTTP header Retry-After. Nothing was done."""

    def __init__(self, what: Code | str, retry_after_s: int, **fields: Field) -> None:
        super().__init__(what, **fields)
        self.retry_after_s = max(1, retry_after_s)


class TooManyRequestsError(RetryLaterError):
    """A quota or another limit of requests is used up: HTTP 429."""

    result = 429


class TryLaterError(RetryLaterError):
    """The request cannot be answered at present: HTTP 503."""

    result = 503


BY_STATUS: dict[str, type[CarillonError]] = {
    error.status: error
    for error in (
        CarillonError,
        InputError,
        NotFoundError,
        ConflictError,
        SignError,
        BusyError,
        UnavailableError,
        NotOwnerError,
        DeadlineError,
        PermissionDeniedError,
    )
}
