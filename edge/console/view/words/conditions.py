"""The filter of an audience, its conditions, and what a device had of them, in the reader's language."""

from collections.abc import Callable, Iterable, Sequence

from edge.console.view.words.attributes import attribute_names
from protos.analytics.v1.analytics_pb2 import Clause, FoundValues
from protos.push.v1.push_pb2 import ActivityClause, Attribute, Comparison, Filter, ModelClause

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
        """Return the condition; of analytics of an older version, which has no filter for it, the recorded text."""
        return self.filter(clause.filter) if clause.HasField("filter") else clause.text

    def found(self, clause: Clause) -> str:
        """Return what the device had of what the condition is about."""
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
        """Return the condition that all members of at least one of the groups are there."""
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
