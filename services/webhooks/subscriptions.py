"""The webhooks of apps and teams as they are now, and the apps whose events each of them gets."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import EventKind, Webhook
from services.domain.accounts import AccountDirectory
from services.domain.apps import AppDirectory
from services.domain.webhooks import scope_text, team_of_scope, team_scope


class Subscriber(NamedTuple):
    """The app or the team that gets events. `scope`: as webhooks have it.

    `appkeys` returns the apps whose events it gets: the app, or those that belong to the team at present. `name`
    returns what people call it.
    """

    scope: str
    appkeys: Callable[[], Collection[str]]
    name: Callable[[], str]

    @property
    def team_id(self) -> str:
        """The id of the team; "" for an app."""
        return team_of_scope(self.scope)


def app_subscriber(appkey: str) -> Subscriber:
    return Subscriber(appkey, lambda: (appkey,), lambda: scope_text(appkey))


class WebhookSubscription(NamedTuple):
    """A webhook, and what it is of."""

    subscriber: Subscriber
    webhook: Webhook


class Subscriptions:
    """All webhooks, from the directories of apps and accounts."""

    def __init__(self, apps: AppDirectory, accounts: AccountDirectory) -> None:
        self._apps = apps
        self._accounts = accounts

    @property
    def changes(self) -> tuple[asyncio.Event, asyncio.Event]:
        """Two events, one of which the next change sets. Get them before reading, then wait for either."""
        return self._apps.applied.change, self._accounts.applied.change

    def all(self) -> Mapping[str, WebhookSubscription]:
        """Return the webhooks by their ids."""
        return {each.webhook.webhook_id: each for each in self._each()}

    def subscriber(self, scope: str) -> Subscriber:
        team_id = team_of_scope(scope)
        if not team_id:
            return app_subscriber(scope)
        return Subscriber(scope, lambda: self._accounts.apps_of(team_id), lambda: self._team_name(team_id))

    def apps_wanting(self, kind: "EventKind.ValueType") -> frozenset[str]:
        """Return the apps whose events of this kind a webhook wants."""
        wanting = (each.subscriber.appkeys() for each in self._each() if kind in (each.webhook.kinds or (kind,)))
        return frozenset[str]().union(*wanting)

    def labels(self) -> Mapping[str, int]:
        """Return the labels of pushes that webhooks name, each with the time at which the first of these was made."""
        found: dict[str, int] = {}
        for each in self._each():
            for label in each.webhook.labels:
                found[label] = min(found.get(label, each.webhook.created_ms), each.webhook.created_ms)
        return found

    def next_change_ms(self) -> int | None:
        """Return when a label is no longer named, if nothing happens before: never."""
        return None

    def _each(self) -> Iterator[WebhookSubscription]:
        for app in self._apps.with_webhooks:
            for webhook in app.webhooks:
                yield WebhookSubscription(app_subscriber(app.appkey), webhook)
        for of_team in self._apps.team_webhooks:
            for webhook in of_team.webhooks:
                yield WebhookSubscription(self.subscriber(team_scope(of_team.team_id)), webhook)

    def _team_name(self, team_id: str) -> str:
        team = self._accounts.team(team_id)
        return f"team {team.name}" if team else scope_text(team_scope(team_id))
