"""Audiences, filters, conditions and attributes in the reader's language."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from protos.analytics.v1.analytics_pb2 import Clause, FoundValues
from protos.analytics.v1.details_pb2 import AudienceSummary, ListedAliases
from protos.push.v1.push_pb2 import ActivityClause, Attribute, Audience, Comparison, Filter, ModelClause
from services.domain.push_summary import audience_summary

# The names of the attributes of devices in the reader's language.


def attribute_names(gettext: Callable[[str], str]) -> Mapping[str, str]:
    """Return the name of each field of protos.registry.v1.Attributes that audits and filters show."""
    _ = gettext
    return {
        "model": _("model"),
        "region": _("region"),
        "carrier": _("carrier"),
        "channel": _("channel"),
        "sdk_version": _("SDK version"),
        "brand": _("brand"),
        "resolution": _("resolution"),
        "os_version": _("OS version"),
        "app_version": _("app version"),
    }


# The filter of an audience, its conditions, and what a device had of them, in the reader's language.

Gettext = Callable[[str], str]
NGettext = Callable[[str, str, int], str]

_COMPARISONS = {
    Comparison.COMPARISON_GREATER: ">",
    Comparison.COMPARISON_LESS: "<",
    Comparison.COMPARISON_GREATER_OR_EQUAL: "≥",
    Comparison.COMPARISON_LESS_OR_EQUAL: "≤",
    Comparison.COMPARISON_EQUAL: "=",
}


class ConditionWords:
    """Writes filters in one language."""

    def __init__(self, gettext: Gettext, ngettext: NGettext) -> None:
        self.gettext = gettext
        self.ngettext = ngettext
        names = attribute_names(gettext)
        self._attributes = {
            number: names[name.removeprefix("ATTRIBUTE_").lower()]
            for name, number in Attribute.items()
            if number != Attribute.ATTRIBUTE_UNSPECIFIED
        }

    def filter(self, rule: Filter) -> str:
        """Return the conditions of the filter, all of which must hold, with commas between them."""
        conditions = [
            self._any_of([list(map(self.tag, group.tags)) for group in rule.tags]),
            self._none_of([list(map(self.tag, group.tags)) for group in rule.not_tags]),
            self._any_of([list(map(self.stag, group.stags)) for group in rule.stags]),
            self._none_of([list(map(self.stag, group.stags)) for group in rule.not_stags]),
            *(self._within(self._attribute(one.attribute), one.values, one.negated) for one in rule.attributes),
            *map(self._activity, rule.activity),
            *map(self._model, rule.models),
        ]
        return ", ".join(filter(None, conditions)) or self.gettext("all devices")

    def condition(self, clause: Clause) -> str:
        """Return the condition; for an older version of analytics, without its filter, the recorded text."""
        return self.filter(clause.filter) if clause.HasField("filter") else clause.text

    def found(self, clause: Clause) -> str:
        """Return the device's values of the tags, attribute or app opens that the condition tests."""
        if not clause.HasField("found_values"):
            return clause.found
        _, rule, had = self.gettext, clause.filter, clause.found_values
        if rule.tags or rule.not_tags:
            return ", ".join(map(self.tag, had.tags)) or _("no tags")
        if rule.stags or rule.not_stags:
            return ", ".join(map(self.stag, had.stags)) or _("no string tags")
        if rule.attributes:
            return f"{self._attribute(rule.attributes[0].attribute)} {had.attribute or _('unknown')}"
        if rule.models:
            return f"{_('model')} {self._brand_and_model(had)}"
        return self.ngettext("%(count)s app open", "%(count)s app opens", had.opens) % {"count": had.opens}

    def tag(self, tag: int) -> str:
        return self.gettext("tag %(tag)s") % {"tag": tag}

    def stag(self, stag: str) -> str:
        return self.gettext('string tag "%(stag)s"') % {"stag": stag}

    def _attribute(self, attribute: Attribute.ValueType) -> str:
        return self._attributes.get(attribute) or self.gettext("unknown attribute")

    def _any_of(self, groups: Sequence[Sequence[str]]) -> str:
        """Return the condition that a device has all members of at least one group."""
        texts = [self.gettext(" and ").join(members) for members in groups]
        return texts[0] if len(texts) == 1 else self.gettext(" or ").join(f"({text})" for text in texts)

    def _none_of(self, groups: Sequence[Sequence[str]]) -> str:
        text = self._any_of(groups)
        if len(groups) == 1 and len(groups[0]) == 1:
            return self.gettext("not %(condition)s") % {"condition": text}
        return self.gettext("not (%(condition)s)") % {"condition": text} if text else ""

    def _within(self, name: str, values: Iterable[str], negated: bool) -> str:
        text = self.gettext("%(name)s not in %(values)s") if negated else self.gettext("%(name)s in %(values)s")
        shown = list(values)
        return text % {"name": name, "values": shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"}

    def _model(self, clause: ModelClause) -> str:
        of_brands = (self.gettext("any %(brand)s") % {"brand": brand} for brand in clause.brands)
        models = [*(f"{pair.brand} {pair.model}" for pair in clause.pairs), *of_brands]
        return self._within(self.gettext("model"), models, clause.negated)

    def _brand_and_model(self, had: FoundValues) -> str:
        unknown = self.gettext("unknown")
        return f"{had.brand or unknown} {had.model or unknown}" if had.brand or had.model else unknown

    def _activity(self, clause: ActivityClause) -> str:
        text = self.ngettext(
            "app opens in %(days)s day %(comparison)s %(opens)s",
            "app opens in %(days)s days %(comparison)s %(opens)s",
            clause.days,
        )
        comparison = _COMPARISONS.get(clause.comparison, "?")
        return text % {"days": clause.days, "comparison": comparison, "opens": clause.opens}


MAX_NAMES = 3
"""Longest list of aliases or tokens that is shown whole; of a longer one its length is shown."""


class AudienceWords:
    """Writes audiences in the language of the conditions."""

    def __init__(self, conditions: ConditionWords) -> None:
        self.gettext = conditions.gettext
        self.ngettext = conditions.ngettext
        self._conditions = conditions

    def __call__(self, summary: AudienceSummary) -> str:
        """Return the conditions of the filter, or how many entries the list has."""
        match summary.WhichOneof("audience"):
            case "everyone":
                return self.gettext("all devices")
            case "filter":
                return self._conditions.filter(summary.filter)
            case "devices":
                return self.devices(summary.devices)
            case "tokens":
                text = self.ngettext("%(number)s token", "%(number)s tokens", summary.tokens)
                return text % {"number": f"{summary.tokens:,}"}
            case "aliases":
                return self._aliases(summary.aliases)
            case None:
                return self.gettext("unknown")
            case never:
                assert_never(never)

    def of_push(self, audience: Audience) -> str:
        """Return the aliases or tokens of a short list, or else what the audience is made of."""
        return self.named(audience) or self(audience_summary(audience))

    def named(self, audience: Audience) -> str:
        """Return the aliases or tokens of a short list; "" for another audience."""
        aliases, tokens = audience.aliases.aliases, audience.tokens.tokens
        if len(aliases) + len(tokens) > MAX_NAMES:
            return ""
        names = [self.gettext("alias %(alias)s") % {"alias": alias} for alias in aliases]
        return ", ".join([*names, *(self.gettext("token %(token)s") % {"token": token} for token in tokens)])

    def devices(self, count: int) -> str:
        return self.ngettext("%(number)s device", "%(number)s devices", count) % {"number": f"{count:,}"}

    def _aliases(self, aliases: ListedAliases) -> str:
        text = self.ngettext(
            "the most recently active device of %(number)s alias",
            "the most recently active device of each of %(number)s aliases",
            aliases.count,
        )
        if aliases.all_devices:
            text = self.ngettext("all devices of %(number)s alias", "all devices of %(number)s aliases", aliases.count)
        return text % {"number": f"{aliases.count:,}"}
