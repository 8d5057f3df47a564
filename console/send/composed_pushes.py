"""Pushes that people compose: checked by the rules of the v2 interface, and sent as its requests are."""

import json
import re
import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from console.settings import ROLE_NAME, ConsoleSettings
from console.shell.numbers import MAX_TIME_MS, whole_number
from edge.core.admission import PushAdmission
from edge.core.answers import Content
from edge.core.idempotency import PushClaims, push_claim
from edge.core.message_ids import MessageIds
from edge.core.parsing import canonical
from edge.core.push import Pushes, PushResult, RequestedPushes
from edge.core.quotas import rate_quotas
from edge.core.signature import AppRef
from edge.v2.apps import push_apps
from edge.v2.push.requests import PushOrder, push_order
from protos.accounts.v1.drafts_pb2 import (
    ApprovalNeed,
    Draft,
    GetDraftsRequest,
    GetDraftsResponse,
    StoredDraft,
    SubmitDraftRequest,
    SubmitDraftResponse,
)
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.push.v1.push_pb2 import KIND_BROADCAST, Message
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, CreateTask
from services.domain.command_writer import CommandWriter
from services.domain.role import RoleContext
from services.domain.token_resolver import TokenAndAliasResolver
from services.errors import Code, ConflictError, InputError
from services.process.clock import HangWatch

# Links in pushes: which fields have them, which are refused, and the host that a phone goes to.

LINK_FIELDS = frozenset({"picture-addr", "picture-hyperlink", "tip-url", "url"})
"""The keys of click_param whose values are links."""

OPENS_URL, STARTS_INTENT = 2, 3
"""The values of click_action whose click_param is the link itself, or an intent."""

_AT = "msgStyle.android.click_param"
_HTTP = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\]")
_PORT = re.compile(r"(.*?)(:[0-9]{0,5})?", re.DOTALL)
_DOTS = str.maketrans(dict.fromkeys("。．｡", "."))
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}


class Param(NamedTuple):
    """A value of click_param with its path in it, such as `information[0].title`; "" for one that is a text alone."""

    path: str
    value: str
    is_link: bool


class Link(NamedTuple):
    """The target of a link. `host`: as the phone resolves it, with the port, international names in ASCII (`xn--`).

    `written`: the host as the link writes it, "" where that is the same. `user`: the part before the host, which may
    look like a host, as in `https://bank.example@evil.example`.
    """

    host: str
    written: str
    user: str


def link_of(text: str) -> Link | None:
    """Return where a link leads as browsers read it; None for a text that is no HTTP or HTTPS link.

    A text with spaces, backslashes or invisible characters is no link: browsers read it in other ways than people.
    """
    found = _HTTP.match(text)
    if found is None or "\\" in text or any(unicodedata.category(char) in _INVISIBLE for char in text):
        return None
    user, _, written = found[1].rpartition("@")
    place = _PORT.fullmatch(written)
    assert place is not None
    host = ".".join(map(_ascii_label, unicodedata.normalize("NFKC", place[1]).lower().translate(_DOTS).split(".")))
    if not _HOST.fullmatch(host):
        return None
    port = place[2] or ""
    return Link(host + port, written if written != host + port else "", user)


def params_of(message: Message) -> Iterator[Param]:
    """Yield every value of the message's click_param, unknown ones too; links are those of link fields."""
    action = message.android.click_action
    param: Any = msgspec.json.decode(message.android.click_param_json or "null")
    yield from _values("", param, is_link=action == OPENS_URL)


def check_links(order: PushOrder) -> None:
    """Check that each link of a push is an HTTP or HTTPS link. InputError: a link is not; the error names its field."""
    for push in order.pushes:
        if push.app.platform != PLATFORM_ANDROID:
            continue
        for param in params_of(push.message):
            if param.is_link and param.value and link_of(param.value) is None:
                at = f"{_AT}.{param.path}" if param.path else _AT
                raise InputError(Code.NO_LINK, at=at)


def looks_like_link(text: str) -> bool:
    """Return whether a text that is in no link field begins as a link does, with a scheme."""
    return _SCHEME.match(text) is not None


def _values(path: str, value: Any, *, is_link: bool) -> Iterator[Param]:
    match value:
        case None:
            return
        case dict():
            for key, inner in value.items():
                inner_path = f"{path}.{key}" if path else str(key)
                yield from _values(inner_path, inner, is_link=str(key).replace("_", "-") in LINK_FIELDS)
        case list():
            for index, inner in enumerate(value):
                yield from _values(f"{path}[{index}]", inner, is_link=is_link)
        case str():
            yield Param(path, value, is_link)
        case _:
            yield Param(path, msgspec.json.encode(value).decode(), is_link)


def _ascii_label(label: str) -> str:
    return label if label.isascii() else f"xn--{label.encode('punycode').decode()}"


KEY_MS = 9 * 60_000
"""How long a key sends a push at most once. Scheduling keeps a used key for ten minutes."""

BeforeCommit = Callable[[], Awaitable[None]]

_PATH = "/send"


class ComposedPush(NamedTuple):
    """A push that keeps every rule. `text`: the canonical text of its v2 request, without a sign."""

    text: str
    order: PushOrder

    @property
    def appkeys(self) -> list[str]:
        return [push.app.appkey for push in self.order.pushes]

    @property
    def is_broadcast(self) -> bool:
        return any(push.kind == KIND_BROADCAST for push in self.order.pushes)


class DraftVersion(NamedTuple):
    """The content of a draft that a person was shown, by its digest."""

    draft_id: str
    digest: bytes


class SentPush(msgspec.Struct, frozen=True):
    """The result of sending a push: its message id by appkey, and the key of its task if it is timed."""

    msgids: dict[str, int]
    task_key: str = ""


class ComposedPushes:
    """Checks composed pushes and sends them, each once for a key of its form."""

    def __init__(
        self, settings: ConsoleSettings, context: RoleContext, resolver: TokenAndAliasResolver, hangs: HangWatch
    ) -> None:
        partitions, peers, clock = settings.partitions, context.peers, context.clock
        writer = CommandWriter(ROLE_NAME, context.log, peers, clock, partitions)
        admission = PushAdmission(context.apps, rate_quotas(settings, context), peers, clock)
        ids = MessageIds(ROLE_NAME, context.log, clock)
        self._pushes = Pushes(admission, writer, resolver, ids, clock, hangs)
        self._claims = PushClaims(self._pushes, peers, clock, partitions)
        self._drafts = DraftsServiceStub(peers.all("accounts")[0])
        self._apps = context.apps
        self._clock = clock
        self._zone = settings.zone()
        self._max_period_s = settings.v2_max_period_s

    def read(self, body: Mapping[str, Any] | str, at_ms: int | None = None) -> ComposedPush:
        """Check a request, given as fields or as text.

        `at_ms`: the time at which it was made, if it is not of now. Its links must be HTTP or HTTPS links.

        InputError: a rule is broken; the error names the field.
        """
        raw = (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode(errors="replace")
        fields, text = canonical.fields_and_text(raw)
        if canonical.may_have_nul(text):
            canonical.check_nul(text.encode())
        now_ms = self._clock.now_ms() if at_ms is None else at_ms
        order = push_order(text.encode(), push_apps(fields), self._app, now_ms, self._zone, self._max_period_s)
        check_links(order)
        return ComposedPush(text, order)

    def new_key(self) -> str:
        """Return a key for a form that is about to be shown."""
        return f"{self._clock.now_ms()}-{secrets.token_hex(16)}"

    def is_valid(self, key: str) -> bool:
        """Return whether a form with this key can still be sent."""
        text, _, random = key.partition("-")
        made_ms = whole_number(text, MAX_TIME_MS)
        return made_ms is not None and len(random) == 32 and 0 <= self._clock.now_ms() - made_ms < KEY_MS

    async def send(
        self, composed: ComposedPush, key: str, origin: Origin, before_commit: BeforeCommit | None = None
    ) -> SentPush:
        """Send a push, or make the task that does, once for the key. Errors as for Pushes.prepare and commit.

        `before_commit` runs when nothing but the log can refuse the push any more.
        """
        if (before := await self.sent_before(composed, key, origin)) is not None:
            return before
        order = composed.order
        requested = RequestedPushes(order.pushes, lambda results, key: _answer(order, results, key), order.due_ms)
        sent, _ = await self._claims.send_first(
            _claim(composed, key, origin), requested, origin, composed.text, before_commit
        )
        return msgspec.convert(sent, SentPush)

    async def sent_before(self, composed: ComposedPush, key: str, origin: Origin) -> SentPush | None:
        """Return what became of a push that was sent under this key; None if there was none.

        InputError: the key was used for another push.
        """
        found = await self._claims.first_answer(_claim(composed, key, origin))
        return None if found is None else msgspec.convert(found, SentPush)

    async def submitted_before(self, composed: ComposedPush, key: str) -> StoredDraft | None:
        """Return the draft that was made of a push under this key, in whatever state it is; None if there was none.

        ConflictError: the key was used for another push.
        """
        found: GetDraftsResponse = await self._drafts.GetDrafts(GetDraftsRequest(draft_ids=[_draft_id(key)]))
        return _same_push(found.drafts[0], composed) if found.drafts else None

    async def submit(
        self,
        composed: ComposedPush,
        key: str,
        origin: Origin,
        team_id: str,
        devices: int,
        need: ApprovalNeed | None = None,
        replaced: DraftVersion | None = None,
        before_commit: BeforeCommit | None = None,
    ) -> StoredDraft:
        """Store a push that needs approval as a draft, once for the key, or as the new content of a draft that waits.

        `need`: why it needs an approval. Errors as for `send` and SubmitDraft. ConflictError: the key was used for
        another push.
        """
        draft_id = replaced.draft_id if replaced else _draft_id(key)
        order = composed.order
        prepared = await self._pushes.prepare(order.pushes, origin, composed.text, order.due_ms or 0, draft_id)

        async def submit(task: CreateTask) -> StoredDraft:
            draft = Draft(
                team_id=team_id,
                body_json=composed.text.encode(),
                task=task,
                is_broadcast=composed.is_broadcast,
                estimated_devices=devices,
                need=need,
            )
            request = SubmitDraftRequest(draft=draft, new_draft_id=draft_id, origin=origin)
            if replaced:
                request.draft.draft_id, request.replaced_digest = replaced
            if before_commit is not None:
                await before_commit()
            answer: SubmitDraftResponse = await self._drafts.SubmitDraft(request)
            return answer.draft

        return _same_push(await self._pushes.commit_draft(prepared, submit), composed)

    def _app(self, ref: AppRef) -> App:
        app = self._apps.get(ref.appkey)
        if app is None or app.platform != ref.platform:
            raise InputError(f"{ref.appkey} is no app of this platform")
        return app


def _claim(composed: ComposedPush, key: str, origin: Origin) -> Claim:
    return push_claim(composed.order.apps.first.appkey, f"{origin.actor} {key}", _PATH, composed.text)


def _draft_id(key: str) -> str:
    """Return the id of the draft that a push under this key becomes where it needs approval."""
    return key.partition("-")[2]


def _same_push(stored: StoredDraft, composed: ComposedPush) -> StoredDraft:
    """Return the draft if it is of this push. ConflictError: it is of another one."""
    if stored.draft.body_json.decode() != composed.text:
        raise ConflictError(Code.KEY_OF_OTHER_PUSH)
    return stored


def _answer(order: PushOrder, results: Sequence[PushResult], task_key: str) -> Content:
    pairs = zip(order.pushes, results, strict=True)
    return {"msgids": {push.app.appkey: result.msgid for push, result in pairs if result.msgid}, "task_key": task_key}
