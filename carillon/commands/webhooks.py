"""`carillon webhook`: webhooks of apps and teams, the state of their receivers, test events, and resending."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from carillon.commands.account_calls import call_accounts, find_team
from carillon.commands.app import DurationType
from carillon.commands.audit import moment_ms
from carillon.commands.output import as_json_lines, print_json, print_table, say, time_text
from carillon.commands.role_calls import call_registry, call_role, command_origin
from carillon.environment import environment
from protos.registry.v1.apps_pb2 import Webhook, WebhookForm
from protos.registry.v1.registry_pb2 import (
    ChangeWebhookRequest,
    GetAppRequest,
    ListTeamWebhooksRequest,
    WebhookKinds,
    WebhookLabels,
    WebhookPushes,
)
from protos.webhooks.v1.webhooks_pb2 import (
    Attempt,
    ListAttemptsRequest,
    ListStatesRequest,
    ResendRequest,
    SendTestRequest,
    WebhookState,
)
from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceStub
from services.domain.settings import Settings, load
from services.domain.webhooks import KIND_NAMES, KINDS, shown_url
from services.net.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2 import ChangeWebhookResponse
    from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceAsyncStub

Answer = TypeVar("Answer")
Command = TypeVar("Command", bound=Callable[..., Any])

FORMS = {
    name.removeprefix("WEBHOOK_FORM_").lower(): WebhookForm.ValueType(number)
    for name, number in WebhookForm.items()
    if number
}
_FORM_NAMES = {number: name for name, number in FORMS.items()}
_ALL = "all"

_TEAM = "team/"
_subscriber = click.argument("subscriber", metavar="APPKEY|team/TEAM")
_webhook = click.argument("webhook_id", metavar="WEBHOOK")


def _choices(command: Command) -> Command:
    """Decorate a command with the options of what a webhook gets, and in which form."""
    kinds = ", ".join(KINDS)
    options = (
        click.option("--kind", "kinds", multiple=True, metavar="KIND", help=f"A kind of event, or all: {kinds}."),
        click.option("--push", "msgids", multiple=True, metavar="MSGID", help="Only this message id, or all."),
        click.option("--label", "labels", multiple=True, metavar="LABEL", help="Only pushes with this label, or all."),
        click.option("--form", type=click.Choice(list(FORMS)), help="standard: signed JSON. Others: a chat's text."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def webhook() -> None:
    """Send the events of an app, or of all apps of a team, to another system, over HTTPS.

    APPKEY is an app; team/TEAM is a team, by its name or its id.
    """


@webhook.command()
@_subscriber
@click.argument("url")
@_choices
@as_json_lines
def add(
    subscriber: str,
    url: str,
    kinds: Sequence[str],
    msgids: Sequence[str],
    labels: Sequence[str],
    form: str | None,
    json_output: bool,
) -> None:
    """Make a webhook of an app or a team, and print the secret with which its receiver verifies requests.

    Without --kind it gets events of every kind.
    """
    answer = _change(ChangeWebhookRequest(**_named(subscriber), url=url), kinds, msgids, labels, form)
    _print_changed(answer, json_output)


@webhook.command(name="set")
@_subscriber
@_webhook
@click.option("--url", help="Another URL.")
@_choices
@click.option("--state", type=click.Choice(["on", "off"]), help="off: events wait until it is switched on again.")
@as_json_lines
def set_webhook(
    subscriber: str,
    webhook_id: str,
    url: str | None,
    kinds: Sequence[str],
    msgids: Sequence[str],
    labels: Sequence[str],
    form: str | None,
    state: str | None,
    json_output: bool,
) -> None:
    """Change a webhook; what no option names stays."""
    request = ChangeWebhookRequest(**_named(subscriber), webhook_id=webhook_id, url=url)
    if state is not None:
        request.disabled = state == "off"
    _print_changed(_change(request, kinds, msgids, labels, form), json_output)


@webhook.command(name="rotate-secret")
@_subscriber
@_webhook
@click.option(
    "--keep-old", type=DurationType(), default="24h", help="How long the present secret signs too. Default: 24h."
)
@as_json_lines
def rotate_secret(subscriber: str, webhook_id: str, keep_old: int, json_output: bool) -> None:
    """Make another secret and print it. Until --keep-old is over, requests are signed with both."""
    request = ChangeWebhookRequest(**_named(subscriber), webhook_id=webhook_id, rotate_keep_old_s=keep_old)
    _print_changed(_change(request), json_output)


@webhook.command()
@_subscriber
@_webhook
@as_json_lines
def resume(subscriber: str, webhook_id: str, json_output: bool) -> None:
    """Resume a webhook that was paused because its receiver had failed for three days. No event is lost."""
    _print_changed(_change(ChangeWebhookRequest(**_named(subscriber), webhook_id=webhook_id, resume=True)), json_output)


@webhook.command()
@_subscriber
@_webhook
@as_json_lines
def remove(subscriber: str, webhook_id: str, json_output: bool) -> None:
    """Remove a webhook; events that wait for it are not sent any more."""
    _change(ChangeWebhookRequest(**_named(subscriber), webhook_id=webhook_id, remove=True))
    if json_output:
        print_json({"webhook": webhook_id, "removed": True})
    else:
        say(f"The webhook {webhook_id} is removed.")


@webhook.command(name="list")
@_subscriber
@as_json_lines
def list_webhooks(subscriber: str, json_output: bool) -> None:
    """List the webhooks of an app or a team, and the state of their receivers."""
    named = _named(subscriber)
    webhooks = _webhooks(**named)
    answer = _call_webhooks(lambda role: role.ListStates(ListStatesRequest(**named)))
    states = {state.webhook_id: state for state in answer.states}
    if json_output:
        for known in webhooks:
            print_json(_record(known, states.get(known.webhook_id)))
        return
    rows = [
        {
            "webhook": known.webhook_id,
            "host": shown_url(known.url),
            "form": _FORM_NAMES.get(known.form, ""),
            "state": _state_text(known, states.get(known.webhook_id)),
            "kinds": ", ".join(_kind_names(known)) or _ALL,
        }
        for known in webhooks
    ]
    print_table(rows, "There is no webhook yet; see `carillon webhook add --help`.")


@webhook.command()
@_subscriber
@_webhook
@as_json_lines
def attempts(subscriber: str, webhook_id: str, json_output: bool) -> None:
    """Show the latest 200 requests to a webhook's receiver and their answers, the newest first."""
    request = ListAttemptsRequest(**_named(subscriber), webhook_id=webhook_id)
    answer = _call_webhooks(lambda role: role.ListAttempts(request))
    if json_output:
        for attempt in answer.attempts:
            print_json(_attempt_record(attempt))
        return
    rows = [
        {
            "time": time_text(attempt.time_ms),
            "took": f"{attempt.took_ms} ms",
            "events": attempt.events,
            "answer": attempt.answer,
            "message": attempt.message_id,
        }
        for attempt in answer.attempts
    ]
    print_table(rows, "No request was sent yet.", numbers=("took", "events"))


@webhook.command(name="test")
@_subscriber
@_webhook
@as_json_lines
def send_test(subscriber: str, webhook_id: str, json_output: bool) -> None:
    """Send a test event of type webhook.test at once, past what waits. Exit code 1: it was not taken."""
    request = SendTestRequest(**_named(subscriber), webhook_id=webhook_id)
    answer = _call_webhooks(lambda role: role.SendTest(request))
    if json_output:
        print_json({**_attempt_record(answer.attempt), "taken": answer.taken})
    else:
        taken = "took" if answer.taken else "did not take"
        say(f"The receiver {taken} the test event: {answer.attempt.answer}, after {answer.attempt.took_ms} ms.")
    if not answer.taken:
        click.get_current_context().exit(1)


@webhook.command()
@_subscriber
@_webhook
@click.option("--from", "first", metavar="TIME", required=True, help="ISO 8601, in CARILLON_TIMEZONE; included.")
@click.option("--to", "last", metavar="TIME", help="Events before this time; now unless given.")
@as_json_lines
def resend(subscriber: str, webhook_id: str, first: str, last: str | None, json_output: bool) -> None:
    """Send the events of a time again, at most 31 days: beside the present ones, with the ids that they had."""
    zone = load(Settings, environment()).zone()
    from_ms = moment_ms("--from", first, zone)
    until_ms = moment_ms("--to", last, zone) if last else int(datetime.now(UTC).timestamp() * 1000)
    request = ResendRequest(**_named(subscriber), webhook_id=webhook_id, from_ms=from_ms, until_ms=until_ms)
    _call_webhooks(lambda role: role.Resend(request))
    if json_output:
        print_json({"webhook": webhook_id, "from_ms": from_ms, "until_ms": until_ms})
    else:
        say(f"The events from {time_text(from_ms)} to {time_text(until_ms)} are being sent again.")


def _change(
    request: ChangeWebhookRequest,
    kinds: Sequence[str] = (),
    msgids: Sequence[str] = (),
    labels: Sequence[str] = (),
    form: str | None = None,
) -> "ChangeWebhookResponse":
    if kinds:
        request.kinds.CopyFrom(WebhookKinds(kinds=[] if _ALL in kinds else [_kind(name) for name in kinds]))
    if msgids:
        request.pushes.CopyFrom(WebhookPushes(msgids=[] if _ALL in msgids else [_msgid(text) for text in msgids]))
    if labels:
        request.labels.CopyFrom(WebhookLabels(labels=[] if _ALL in labels else labels))
    if form is not None:
        request.form = FORMS[form]
    request.origin.CopyFrom(command_origin())
    return call_registry(lambda registry: registry.ChangeWebhook(request))


def _kind(name: str) -> Any:
    if name not in KINDS:
        raise click.BadParameter(f"{name!r} is no kind of event: {', '.join(KINDS)}", param_hint="--kind")
    return KINDS[name]


def _msgid(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**53):
        raise click.BadParameter(f"{text!r} is no message id", param_hint="--push")
    return int(text)


def _named(subscriber: str) -> dict[str, Any]:
    """Return the field of a request that names the app or the team. click.ClickException: there is no such team."""
    if not subscriber.startswith(_TEAM):
        return {"appkey": subscriber}
    team = call_accounts(lambda accounts: find_team(accounts, subscriber.removeprefix(_TEAM)))
    return {"team_id": team.team.team_id}


def _webhooks(appkey: str = "", team_id: str = "") -> Sequence[Webhook]:
    if appkey:
        return call_registry(lambda registry: registry.GetApp(GetAppRequest(appkey=appkey))).app.webhooks
    request = ListTeamWebhooksRequest(team_id=team_id)
    return call_registry(lambda registry: registry.ListTeamWebhooks(request)).webhooks


def _call_webhooks(call: "Callable[[WebhooksServiceAsyncStub], Awaitable[Answer]]") -> Answer:
    """Call the role webhooks. click.ClickException explains what to do if the call fails."""

    async def with_stub(channel: Channel) -> Answer:
        return await call(WebhooksServiceStub(channel))

    return call_role("webhooks", with_stub)


def _print_changed(answer: "ChangeWebhookResponse", json_output: bool) -> None:
    changed = answer.webhook
    if json_output:
        print_json({**_record(changed, None), **({"secret": answer.secret} if answer.secret else {})})
        return
    say(f"Webhook {changed.webhook_id} to {shown_url(changed.url)}: {', '.join(_kind_names(changed)) or 'all kinds'}.")
    if answer.secret:
        say(answer.secret, "The receiver verifies requests with this secret. Store it: it is not shown again.")


def _kind_names(known: Webhook) -> list[str]:
    return [KIND_NAMES.get(kind, str(kind)) for kind in known.kinds]


def _state_text(known: Webhook, state: WebhookState | None) -> str:
    if known.disabled:
        return "off"
    if state is None:
        return "not begun yet"
    if state.paused_ms:
        return f"paused since {time_text(state.paused_ms)}: its receiver has failed for too long"
    if state.failing_since_ms:
        return f"failing since {time_text(state.failing_since_ms)}"
    return "sends again" if state.is_resending else "ok"


def _record(known: Webhook, state: WebhookState | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "webhook": known.webhook_id,
        "url": known.url,
        "form": _FORM_NAMES.get(known.form, ""),
        "kinds": _kind_names(known),
        "pushes": list(known.msgids),
        "labels": list(known.labels),
        "state": "off" if known.disabled else "on",
        "created_ms": known.created_ms,
        "old_secret_until_ms": known.old_secret_until_ms or None,
    }
    if state is not None:
        record |= {
            "failing_since_ms": state.failing_since_ms or None,
            "paused_ms": state.paused_ms or None,
            "waiting": state.waiting,
            "oldest_ms": state.oldest_ms or None,
            "behind": state.is_behind,
            "resending": state.is_resending,
        }
    return record


def _attempt_record(attempt: Attempt) -> dict[str, Any]:
    return {
        "message": attempt.message_id,
        "time_ms": attempt.time_ms,
        "took_ms": attempt.took_ms,
        "events": attempt.events,
        "status": attempt.status or None,
        "answer": attempt.answer,
    }
