"""Push requests of every kind that the HTTP interfaces accept, each with its expected audience."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from testkit.installation.app_server import AppCredentials
from tests.soak.android_device import CHANNELS, STAGS, TAGS
from tests.soak.ledger import LONG_S, Push, State

_REFUSED = 0.05
_REFUSED_S = 1
"""Seconds to live; shorter than the legacy interfaces accept."""

Body = dict[str, Any]


class Request(NamedTuple):
    """A request: the HTTP interface, the path, the body without a sign, and the apps whose secrets sign it."""

    interface: str
    path: str
    body: Body
    apps: Sequence[AppCredentials]
    push: Push


class PushVariant(NamedTuple):
    """A kind of push: its target in the request, the expected audience, and its apps."""

    kind: str
    target: Body
    matches: Callable[[State], bool]
    apps: str = "android"
    most_active_only: bool = False
    may_be_cancelled: bool = False


PushVariants = tuple[PushVariant, ...]


class Targets(NamedTuple):
    """The tokens and aliases that pushes can name at the moment."""

    tokens: Sequence[str]
    aliases: Sequence[str]
    ios_tokens: Sequence[str]


class Mixture(NamedTuple):
    """`unicasts`: how many come with each broadcast or multicast. `speeds`: rate limits, for one push in five.

    `short_s`: the bounds of the time to live of pushes that may expire, and `delay_s` those of the delay of timed
    pushes, in seconds.
    """

    unicasts: int = 1
    speeds: Sequence[int] = (5, 50, 1000)
    short_s: tuple[int, int] = (1, 3)
    delay_s: tuple[int, int] = (1, 6)


ANY_PUSH = Mixture()


class PushGenerator:
    """Makes push requests, chosen by the seed; without an iOS app, only for Android."""

    def __init__(
        self, android: AppCredentials, ios: AppCredentials | None, random: Random, mixture: Mixture = ANY_PUSH
    ) -> None:
        self._apps: dict[str, Sequence[AppCredentials]] = {"android": (android,)}
        if ios is not None:
            self._apps |= {"ios": (ios,), "both": (android, ios)}
        self._random = random
        self._mixture = mixture
        self._serial = 0

    def sign_with(self, app: AppCredentials) -> None:
        """Sign the requests for this app, which has a new secret key, with that one from now on."""
        self._apps = {
            name: tuple(app if each.appkey == app.appkey else each for each in apps)
            for name, apps in self._apps.items()
        }

    def secret_of(self, app: AppCredentials) -> str:
        """Return the app's present secret key."""
        return next(each.secret_key for apps in self._apps.values() for each in apps if each.appkey == app.appkey)

    def next(self, targets: Targets) -> Request:
        self._serial += 1
        make = self._random.choices((self._v2, self._android, self._ios), (6, 3, 1 if "ios" in self._apps else 0))[0]
        return make(targets)

    def broadcast(self) -> Request:
        """Return a broadcast to all Android devices that lives for a day, without a rate limit."""
        self._serial += 1
        variant = PushVariant("v2 broadcast", {"userScope": 1}, _everyone)
        return self._v2_request(variant, {"period": LONG_S}, is_notif=1)

    def ios_broadcast(self) -> Request:
        """Return a broadcast to all iOS devices that lives for a day."""
        self._serial += 1
        variant = PushVariant("v2 broadcast to iOS", {"userScope": 2}, _everyone, "ios")
        return self._v2_request(variant, {"period": LONG_S}, is_notif=1)

    def _v2(self, targets: Targets) -> Request:
        make = self._random.choice((_v2_many, *[_v2_named] * self._mixture.unicasts))
        variant = self._random.choice([each for each in make(self._random, targets) if each.apps in self._apps])
        option: Body = {"period": self._period_s()}
        if self._random.random() < 0.2:
            option["qps"] = self._random.choice(self._mixture.speeds)
        if self._random.random() < 0.15:
            option |= {"timed": 2, "send_time_interval": self._random.randint(*self._mixture.delay_s)}
        return self._v2_request(variant, option, self._random.randint(0, 1))

    def _v2_request(self, variant: PushVariant, option: Body, is_notif: int) -> Request:
        push = self._push(variant, option["period"], option.get("qps", 0), option.get("send_time_interval", 0))
        appkeys = {name: self._apps[name][0].appkey for name in ("android", "ios") if variant.apps in (name, "both")}
        style: Body = {"basic": {"content": push.content, "is_notif": is_notif}, "android": {"title": "Soak"}}
        body = {"sendTo": {"appkey": appkeys, **variant.target}, "msgStyle": style, "option": option}
        return Request("v2", "/v2/push", body, self._apps[variant.apps], push)

    def _android(self, targets: Targets) -> Request:
        many, named = _android_variants(self._random, targets)
        variant = self._random.choice((*many, *named * self._mixture.unicasts))
        period_s, qps = self._legacy_period_s(), self._random.choice((0, 0, 0, 50))
        is_broadcast = variant.kind == "android broadcast"
        push = self._push(variant, period_s, qps if is_broadcast else 0)
        body = {
            "appkey": push.appkeys[0],
            "message": push.content,
            "is_notif": self._random.randint(0, 1),
            "period": str(period_s),
            "qps": qps,
            **variant.target,
        }
        return Request("android", "/push", body, self._apps["android"], push)

    def _ios(self, targets: Targets) -> Request:
        variant = self._random.choice(_ios_variants(self._random, targets))
        push = self._push(variant, self._legacy_period_s(), 0)
        transparent = {"transparent": self._random.randint(0, 1)} if variant.kind == "ios broadcast" else {}
        message = self._random.choice((push.content, {"title": "Soak", "body": push.content}))
        body = {
            "appkey": push.appkeys[0],
            "message": message,
            "period": push.period_s,
            **variant.target,
            **transparent,
        }
        return Request("ios", "/push", body, self._apps["ios"], push)

    def _push(self, variant: PushVariant, period_s: int, qps: int, delay_s: int = 0) -> Push:
        return Push(
            serial=self._serial,
            kind=variant.kind,
            appkeys=tuple(app.appkey for app in self._apps[variant.apps]),
            matches=variant.matches,
            period_s=period_s,
            qps=qps,
            delay_s=delay_s,
            most_active_only=variant.most_active_only,
            may_be_cancelled=variant.may_be_cancelled and not delay_s,
        )

    def _period_s(self) -> int:
        return LONG_S if self._random.random() < 0.8 else self._random.randint(*self._mixture.short_s)

    def _legacy_period_s(self) -> int:
        return _REFUSED_S if self._random.random() < _REFUSED else LONG_S


def _everyone(state: State) -> bool:
    return True


def _v2_many(random: Random, targets: Targets) -> Sequence[PushVariant]:
    """Broadcasts and multicasts."""
    one, two = random.sample(list(TAGS), 2)
    stag, other = random.sample(STAGS, 2)
    channel = random.choice(CHANNELS)
    by_channel = {"android": {"channel": [channel]}}
    return (
        PushVariant("v2 broadcast", {"userScope": 1}, _everyone, may_be_cancelled=True),
        PushVariant("v2 broadcast to both", {"userScope": 0}, _everyone, "both"),
        PushVariant("v2 broadcast to iOS", {"userScope": 2}, _everyone, "ios"),
        PushVariant("v2 tag", {"userScope": 6, "tag": [[one]]}, lambda s: one in s.tags, may_be_cancelled=True),
        PushVariant("v2 tags", {"userScope": 6, "tag": [[one, two]]}, lambda s: {one, two} <= s.tags),
        PushVariant(
            "v2 tag but not",
            {"userScope": 6, "tag": [[one]], "not_tag": [[two]]},
            lambda s: one in s.tags and two not in s.tags,
        ),
        PushVariant(
            "v2 string tags",
            {"userScope": 6, "stag": [[stag], [other]]},
            lambda s: stag in s.stags or other in s.stags,
            random.choice(("android", "both")),
        ),
        PushVariant("v2 attribute", {"userScope": 7, "optfilter": by_channel}, lambda s: s.channel == channel),
        PushVariant(
            "v2 tag and attribute",
            {"userScope": 8, "tag": [[one]], "optfilter": by_channel},
            lambda s: one in s.tags and s.channel == channel,
        ),
    )


def _v2_named(random: Random, targets: Targets) -> Sequence[PushVariant]:
    """Unicasts."""
    alias, listed, token = (
        random.choice(targets.aliases),
        _listed(random, targets.tokens),
        random.choice(targets.tokens),
    )
    ios_token = random.choice(targets.ios_tokens or [""])
    both = {"android": listed, "ios": [ios_token]}
    return (
        PushVariant(
            "v2 alias, most active",
            {"userScope": 3, "alias": alias},
            lambda s: s.alias == alias,
            most_active_only=True,
        ),
        PushVariant("v2 alias", {"userScope": 4, "alias": [alias]}, lambda s: s.alias == alias),
        PushVariant("v2 token", {"userScope": 5, "token": {"android": token}}, lambda s: s.token == token),
        PushVariant("v2 token", {"userScope": 5, "token": {"android": token}}, lambda s: s.token == token),
        PushVariant("v2 token list", {"userScope": 5, "token": {"android": listed}}, lambda s: s.token in listed),
        PushVariant(
            "v2 iOS token", {"userScope": 5, "token": {"ios": ios_token}}, lambda s: s.token == ios_token, "ios"
        ),
        PushVariant(
            "v2 tokens of both",
            {"userScope": 5, "token": both},
            lambda s: s.token in listed or s.token == ios_token,
            "both",
        ),
    )


def _android_variants(random: Random, targets: Targets) -> tuple[PushVariants, PushVariants]:
    """Broadcasts and multicasts, then unicasts."""
    one, two = random.sample(list(TAGS), 2)
    channel, alias = random.choice(CHANNELS), random.choice(targets.aliases)
    token, listed = random.choice(targets.tokens), _listed(random, targets.tokens)
    many = (
        PushVariant("android broadcast", {}, _everyone, may_be_cancelled=True),
        PushVariant("android tags", {"filter": [one, str(two)]}, lambda s: {one, two} <= s.tags, may_be_cancelled=True),
        PushVariant(
            "android tag groups",
            {"filter_v2": [[one], [two]]},
            lambda s: one in s.tags or two in s.tags,
            may_be_cancelled=True,
        ),
        PushVariant("android attribute", {"optfilter": {"channel": [channel]}}, lambda s: s.channel == channel),
    )
    named = (
        PushVariant("android token", {"token": token}, lambda s: s.token == token),
        PushVariant("android token list", {"token": listed}, lambda s: s.token in listed),
        PushVariant("android alias", {"alias": alias, "alias_send_all": 1}, lambda s: s.alias == alias),
        PushVariant("android alias, most active", {"alias": alias}, lambda s: s.alias == alias, most_active_only=True),
    )
    return many, named


def _ios_variants(random: Random, targets: Targets) -> Sequence[PushVariant]:
    token, listed = random.choice(targets.ios_tokens), _listed(random, targets.ios_tokens)
    return (
        PushVariant("ios broadcast", {}, _everyone, "ios"),
        PushVariant("ios token", {"token": token}, lambda s: s.token == token, "ios"),
        PushVariant("ios token list", {"token": listed}, lambda s: s.token in listed, "ios"),
    )


def _listed(random: Random, tokens: Sequence[str]) -> list[str]:
    """Return some of the tokens, at times with an unknown one or one twice."""
    some = random.sample(list(tokens), min(len(tokens), random.randint(1, 4)))
    if random.random() < 0.2:
        some.append("f" * 32)
    if random.random() < 0.2:
        some.append(some[0])
    return some


def ids_in(answer: Mapping[str, Any], push: Push) -> dict[str, int]:
    """Return the first message id by appkey; an app whose part was refused has none."""
    if "android" in answer and "ios" in answer and len(push.appkeys) == 2:
        parts = zip(push.appkeys, (answer["android"], answer["ios"]), strict=True)
        return {appkey: part["id"] for appkey, part in parts if part["result"] == 0}
    first = answer.get("id") or answer.get("msgid") or answer["details"][0]["msgid"]
    return {push.appkeys[0]: first}
