"""Slips of a sender that would reach more devices than meant are refused: targets outside a userScope, wrong keys."""

from typing import Any

import pytest

from testkit.edge.push_rules import ANDROID, IOS, Row, check_rule, check_rules_through_http, request, scope
from testkit.edge.role import EdgeInstallation

FILTER = {"tag": [[1]], "not_tag": [1], "stag": [["a"]], "not_stag": ["a"], "optfilter": {"android": {"phone": ["p"]}}}
VALUES: dict[str, Any] = {**FILTER, "alias": "a", "token": {"android": "t"}}
"""A value for each target of sendTo."""

NEEDED = {0: (), 1: (), 2: (), 3: ("alias",), 4: ("alias",), 5: ("token",), 6: ("tag",), 7: ("optfilter",)} | {
    8: ("tag", "optfilter")
}
TAGS = ("tag", "not_tag", "stag", "not_stag")
READ = NEEDED | {6: TAGS, 8: (*TAGS, "optfilter")}
"""The targets that each userScope needs, and those that it reads."""

MISSPELT = {
    "tag": ["tags", "Tag", "TAG", "Tags", "tg", "taq", "ttag"],
    "not_tag": ["not_tags", "notTag", "not-tag", "NOT_TAG"],
    "stag": ["stags", "STAG", "Stags", "sttag", "stagg"],
    "not_stag": ["not_stags", "notStag", "notStags"],
    "alias": ["aliases", "Alias", "aliass", "alia", "allias"],
    "token": ["tokens", "Tokens", "tokem", "tokn", "ttoken"],
    "optfilter": ["optFilter", "opt_filter", "optfilters", "optfiler"],
}
EMPTY: tuple[Any, ...] = (None, "", [], {})
UNKNOWN = [
    "filter",
    "tagged",
    "label",
    "user",
    "x",
    "",
    "stagger",
    "aliasing",
    "tokenize",
    "_",
    "标签",
    "extra",
    "option",
]


def to_both(number: int, **fields: Any) -> dict[str, Any]:
    needed = {name: VALUES[name] for name in NEEDED[number]}
    return scope(number, appkey={"android": ANDROID, "ios": IOS}, **(needed | fields))


def outside(number: int) -> list[str]:
    """Return the targets that do not belong to a userScope."""
    return [name for name in VALUES if name not in READ[number]]


ROWS: list[Row] = [
    *((to_both(number), None) for number in NEEDED),
    *(
        (to_both(number, **{name: VALUES[name]}), "sendTo")
        for number in NEEDED
        for name in outside(number)
    ),
    *(
        (to_both(number, **{name: value}), f"sendTo.{name} does not belong to userScope {number}")
        for number in (0, 1, 2)
        for name in VALUES
        for value in (VALUES[name], 0, False, "x")
    ),
    (to_both(7, tag=[[1]]), "sendTo.tag does not belong to userScope 7: leave it out or empty"),
    (to_both(6, optfilter=FILTER["optfilter"]), "sendTo.optfilter does not belong to userScope 6"),
    (to_both(3, token={"android": "t"}), "sendTo.token does not belong to userScope 3"),
    (to_both(5, alias="a"), "sendTo.alias does not belong to userScope 5"),
    *(
        (to_both(number, **dict.fromkeys(outside(number), empty)), None)
        for number in NEEDED
        for empty in EMPTY
    ),
    *(
        (scope(1, **{key: value}), f"sendTo.{key} is not known; the field is sendTo.{meant}")
        for meant, keys in MISSPELT.items()
        for key in keys
        for value in (VALUES[meant], None)
    ),
    (scope(1, **dict.fromkeys(UNKNOWN, 1)), None),
    (request(tags=[[1]], tokens=["t"]), None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "problem"), ROWS)
def test_rule(body: dict[str, Any], problem: str | None) -> None:
    check_rule(body, problem)


async def test_a_refused_slip_sends_nothing(installation: EdgeInstallation) -> None:
    rows = [row for row in ROWS if row[1] is not None]
    await check_rules_through_http(installation, [rows[0], rows[-1]])
    assert not await installation.sent()
