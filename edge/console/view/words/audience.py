"""What an audience is made of, in the reader's language."""

from typing import assert_never

from edge.console.view.words.conditions import ConditionWords
from protos.analytics.v1.details_pb2 import AudienceSummary, ListedAliases


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
