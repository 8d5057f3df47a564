"""Checks a filter before it is evaluated: filters that can never be resolved are refused, whoever wrote them."""

from collections.abc import Mapping

from protos.push.v1.push_pb2 import Audience, Filter
from services.domain.limits.filters import MAX_GROUPS, MAX_VALUES, check_size
from services.runtime.errors import InputError
from services.targeting.activity import WINDOWS
from services.targeting.filter_evaluation import COMPARED
from services.targeting.state import ATTRIBUTES

MAX_ACTIVITY_CLAUSES = 50

_CLAUSE_LISTS: Mapping[str, int] = {
    "attributes": MAX_VALUES,
    "models": MAX_VALUES,
    "activity": MAX_ACTIVITY_CLAUSES,
}


def checked_filter(audience: Audience) -> Filter:
    """Return the audience as a filter, an empty one for everyone.

    InputError: another form, an invalid filter, or one larger than the HTTP interfaces accept.
    """
    match audience.WhichOneof("audience"):
        case "everyone":
            return Filter()
        case "filter":
            _check_groups(audience.filter)
            _check_clauses(audience.filter)
            check_size(audience.filter, {field.name: f"filter.{field.name}" for field in Filter.DESCRIPTOR.fields})
            return audience.filter
        case form:
            raise InputError(f"audience: everyone or a filter can be resolved, not {form or 'nothing'}")


def _check_groups(wanted: Filter) -> None:
    """Refuse empty groups, which would match everyone, and too many groups."""
    sizes = {
        "tags": [len(group.tags) for group in wanted.tags],
        "not_tags": [len(group.tags) for group in wanted.not_tags],
        "stags": [len(group.stags) for group in wanted.stags],
        "not_stags": [len(group.stags) for group in wanted.not_stags],
    }
    for field, of_groups in sizes.items():
        if 0 in of_groups:
            raise InputError(f"filter.{field}: a group is empty")
        if len(of_groups) > MAX_GROUPS:
            raise InputError(f"filter.{field}: {len(of_groups)} groups, but at most {MAX_GROUPS} are allowed")


def _check_clauses(wanted: Filter) -> None:
    for field, most in _CLAUSE_LISTS.items():
        if (count := len(getattr(wanted, field))) > most:
            raise InputError(f"filter.{field}: {count} clauses, but at most {most} are allowed")
    for attribute in wanted.attributes:
        if attribute.attribute not in ATTRIBUTES:
            raise InputError(f"filter.attributes: there is no attribute {attribute.attribute}")
    for activity in wanted.activity:
        if activity.days not in WINDOWS:
            raise InputError(f"filter.activity: days is {activity.days}, but must be one of {WINDOWS}")
        if activity.comparison not in COMPARED:
            raise InputError(f"filter.activity: there is no comparison {activity.comparison}")
