"""Why a push needs the approval of a second person, in the reader's language."""

from collections.abc import Callable

from edge.console.view.languages import Language
from protos.accounts.v1.drafts_pb2 import ApprovalNeed
from protos.registry.v1.apps_pb2 import App


def need_words(need: ApprovalNeed | None, language: Language, app_of: Callable[[str], App]) -> str:
    """Return why a push needs an approval, with the numbers that decided it; "" if it needs none or that is unknown."""
    if need is None:
        return ""
    _, number = language.gettext, language.number
    match need.rule:
        case ApprovalNeed.RULE_BROADCASTS:
            text = _(
                "It reaches %(devices)s of %(all)s devices of %(app)s, and a push to %(share)s %% of them or more needs"
                " an approval."
            )
            words = text % {
                "devices": number(need.devices),
                "all": number(need.app_devices),
                "app": app_of(need.appkey).name,
                "share": number(need.share_percent),
            }
        case ApprovalNeed.RULE_ABOVE_DEVICES:
            text = _("It reaches %(devices)s devices, and a push to more than %(bound)s devices needs an approval.")
            words = text % {"devices": number(need.devices), "bound": number(need.above_devices)}
        case _:
            return ""
    if need.earlier_devices:
        more = _("The sender's pushes of the last hour, to %(earlier)s devices, count too.")
        words += " " + more % {"earlier": number(need.earlier_devices)}
    return words
