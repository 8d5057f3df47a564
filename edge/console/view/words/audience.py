"""What an audience is made of, in the reader's language."""

from typing import assert_never

from edge.console.view.words.conditions import ConditionWords
from protos.analytics.v1.details_pb2 import AudienceSummary, ListedAliases
from protos.push.v1.push_pb2 import Audience
from services.domain.audiences.summary import audience_summary

MAX_NAMES = 3
"""A longer list of aliases or tokens is told by its length."""


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
