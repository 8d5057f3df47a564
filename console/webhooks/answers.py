"""Webhooks in answers and in the output of commands."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from console.apps.answers import TimeMs
from edge.core.parsing.fields import Count, described
from protos.registry.v1.apps_pb2 import Webhook as StoredWebhook
from protos.registry.v1.apps_pb2 import WebhookForm
from protos.webhooks.v1.webhooks_pb2 import Attempt as MadeAttempt
from protos.webhooks.v1.webhooks_pb2 import WebhookState as KnownState
from services.domain.webhooks import KIND_NAMES

FORMS: Mapping[str, "WebhookForm.ValueType"] = {
    name.removeprefix("WEBHOOK_FORM_").lower(): WebhookForm.ValueType(number)
    for name, number in WebhookForm.items()
    if number
}
"""The forms of requests by name, such as "standard"."""

_FORM_NAMES = {number: name for name, number in FORMS.items()}


class WebhookState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the events of a webhook have been delivered."""

    failing_since_ms: Annotated[
        int | None, described("Since when its receiver does not take a request; null: it took the latest one.")
    ]
    paused_ms: Annotated[
        int | None, described("Since when it is paused because its receiver has failed for too long; null: it is not.")
    ]
    waiting: Annotated[Count, described("Events that were read and wait; more may wait in the log.")]
    oldest_ms: Annotated[int | None, described("The time of the oldest of them; null: none waits.")]
    behind: Annotated[bool, described("Whether it is behind, so that its events are read apart from those of others.")]
    resending: Annotated[bool, described("Whether events of an earlier time are being sent again.")]


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook without its secret."""

    webhook_id: Annotated[str, described("Its id.")]
    url: Annotated[str, described("Where its requests go. It may be a secret of the receiver.")]
    form: Annotated[str, described("standard: signed JSON; else the chat service whose messages it sends.")]
    kinds: Annotated[list[str], described("The types of its events; none: all.")]
    msgids: Annotated[list[int], described("Of events about pushes, only those about these messages; none: all.")]
    labels: Annotated[list[str], described("And those about pushes with these labels; none, like `msgids`: all.")]
    disabled: Annotated[bool, described("Whether it is switched off: its events wait.")]
    created_ms: TimeMs
    old_secret_until_ms: Annotated[int | None, described("Until when the former secret signs too; null: no more.")]
    state: Annotated[
        WebhookState | UnsetType | None,
        described("How its receiver does; null: the role webhooks does not know it yet, or does not answer."),
    ] = UNSET


class WebhookList(msgspec.Struct, frozen=True):
    """The webhooks of an app, in the order in which they were made."""

    webhooks: Annotated[list[Webhook], described("The webhooks.")]


class ChangedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that was made or changed."""

    webhook: Annotated[Webhook | None, described("The webhook; null: it was removed.")]
    secret: Annotated[
        str | UnsetType,
        described("A new secret, with which the receiver verifies requests. It is not shown again."),
    ] = UNSET


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a receiver."""

    message_id: Annotated[str, described("Its header `webhook-id`; a repeated request has the same.")]
    time_ms: TimeMs
    took_ms: Annotated[Count, described("How long the answer took, milliseconds.")]
    events: Annotated[Count, described("The events in it.")]
    status: Annotated[int | None, described("The HTTP status; null: there was no answer.")]
    answer: Annotated[str, described("The status in words, or why there was no answer.")]


class AttemptList(msgspec.Struct, frozen=True):
    """The latest requests to a receiver, the newest first."""

    attempts: Annotated[list[Attempt], described("The requests.")]


class TestSent(msgspec.Struct, frozen=True):
    """The result of a test event."""

    taken: Annotated[bool, described("Whether the receiver has taken it.")]
    attempt: Annotated[Attempt, described("The request.")]


class ResendBegun(msgspec.Struct, frozen=True):
    """The events of a time are being sent again."""

    from_ms: TimeMs
    until_ms: TimeMs


def webhook_answer(webhook: StoredWebhook, state: KnownState | UnsetType | None = UNSET) -> Webhook:
    """Return a webhook as answers show it. `state`: UNSET where it is not asked for."""
    return Webhook(
        webhook_id=webhook.webhook_id,
        url=webhook.url,
        form=_FORM_NAMES.get(webhook.form, ""),
        kinds=[KIND_NAMES.get(kind, str(kind)) for kind in webhook.kinds],
        msgids=list(webhook.msgids),
        labels=list(webhook.labels),
        disabled=webhook.disabled,
        created_ms=webhook.created_ms,
        old_secret_until_ms=webhook.old_secret_until_ms or None,
        state=_state(state) if isinstance(state, KnownState) else state,
    )


def attempt_answer(attempt: MadeAttempt) -> Attempt:
    """Return a request to a receiver as answers show it."""
    return Attempt(
        message_id=attempt.message_id,
        time_ms=attempt.time_ms,
        took_ms=attempt.took_ms,
        events=attempt.events,
        status=attempt.status or None,
        answer=attempt.answer,
    )


def _state(state: KnownState) -> WebhookState:
    return WebhookState(
        failing_since_ms=state.failing_since_ms or None,
        paused_ms=state.paused_ms or None,
        waiting=state.waiting,
        oldest_ms=state.oldest_ms or None,
        behind=state.is_behind,
        resending=state.is_resending,
    )
