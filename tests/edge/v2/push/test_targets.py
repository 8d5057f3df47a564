"""The rules of sendTo in POST /v2/push, one row each: at the limit and one past it. `None`: accepted."""

from typing import Any

import pytest

from services.domain.regions import REGIONS
from testkit.edge.push_rules import (
    ANDROID,
    GONE,
    IOS,
    IOS_2,
    NAME_40,
    Row,
    both,
    check_rule,
    check_rules_through_http,
    filtered,
    request,
    scope,
)
from testkit.edge.role import EdgeInstallation

FILTER = "sendTo.optfilter.android"

TOKEN = "ab" * 32
IN_ORDER = [TOKEN, TOKEN.upper(), "Ab" * 100, f"<{' '.join(['740f4707'] * 8)}>", f" {TOKEN}<", "0" * 64]
OUT_OF_ORDER = [
    "ab" * 31,
    "a" * 63,
    "a" * 201,
    "g" * 64,
    "t",
    f"{TOKEN}-",
    f"{TOKEN}\n",
    "＠" * 64,
    "a" * 63 + "١",
    "<>",
    " ",
]

ROWS: list[Row] = [
    # the parts of a body
    (request(), None),
    (request(sendTo=GONE), "sendTo is missing"),
    (request(sendTo=[]), "sendTo must be an object"),
    (request(msgStyle=GONE), "msgStyle is missing"),
    (request(msgStyle="x"), "msgStyle must be an object"),
    (request(option=None, extra=None), None),
    (request(option="x"), "option must be an object"),
    (request(option=[]), None),  # as PHP writes an empty object
    (request(extra="free"), None),
    (request(extra={"a": 1}), "extra must be a string"),
    (request(whatever={"deep": [1, {"x": None}]}, sendTo__unknown=[[]], msgStyle__x=1, option={"y": 2}), None),
    # userScope and appkey
    (request(sendTo__userScope=GONE), "sendTo.userScope is missing"),
    *((request(sendTo__userScope=one), None) for one in ("1", "01", 1.0)),
    *(
        (request(sendTo__userScope=wrong), "sendTo.userScope must be an integer")
        for wrong in ("1.0", "x", "", " 1", "1\n", "１", "null", 1.5)
    ),
    (request(sendTo__userScope="9"), "sendTo.userScope must be an integer from 0 to 8"),
    (both(sendTo__userScope="0"), None),
    (scope("7", appkey={"ios": IOS}, optfilter={"android": {"phone": ["x"]}}), "sendTo.appkey.android is missing"),
    (scope("3", alias="alice"), None),
    (scope("3"), "sendTo.alias is missing"),
    (scope("3", alias="alice", tag=[["1"]]), "sendTo: token or alias cannot be combined with a filter"),
    (scope("1", tag=[["1"]]), "sendTo.tag does not belong to userScope 1"),
    (request(sendTo__userScope=True), "sendTo.userScope must be an integer"),
    (request(sendTo__userScope=9), "sendTo.userScope must be an integer from 0 to 8"),
    (request(sendTo__userScope=-1), "sendTo.userScope must be an integer from 0 to 8"),
    (request(sendTo__appkey=GONE), "sendTo.appkey is missing"),
    (request(sendTo__appkey=ANDROID), "sendTo.appkey must be an object"),
    (request(sendTo__appkey={}), "sendTo.appkey.android is missing"),
    (request(sendTo__appkey={"android": ""}), "sendTo.appkey.android must be a string"),
    (request(sendTo__appkey={"android": [ANDROID]}), "sendTo.appkey.android must be a string"),
    (request(sendTo__appkey={"android": int(ANDROID)}), None),
    (request(sendTo__appkey={"ios": IOS}), "sendTo.appkey.android is missing"),
    (scope(2), "sendTo.appkey.ios is missing"),
    (scope(0), "sendTo.appkey.ios is missing"),
    (scope(0, appkey={"ios": IOS}), "sendTo.appkey.android is missing"),
    (both(), None),
    (both(sendTo__appkey={"android": ANDROID, "ios": [IOS, int(IOS_2)]}), None),
    (both(sendTo__appkey={"android": ANDROID, "ios": []}), "sendTo.appkey.ios must be a string or a list of strings"),
    (
        both(sendTo__appkey={"android": ANDROID, "ios": [IOS, None]}),
        "sendTo.appkey.ios must be a string or a list of strings",
    ),
    (both(sendTo__appkey={"android": ANDROID, "ios": [IOS, IOS]}), "sendTo.appkey.ios names an app twice"),
    (scope(7, appkey={"ios": IOS}, optfilter={"android": {"phone": ["x"]}}), "sendTo.appkey.android is missing"),
    # alias
    (scope(3, alias="alice"), None),
    (scope(4, alias=["alice", "bob"]), None),
    (scope(3), "sendTo.alias is missing"),
    (scope(3, alias=None), "sendTo.alias is missing"),
    (scope(3, alias=7), "sendTo.alias must be a string or a list"),
    (scope(3, alias=""), "sendTo.alias must not be empty"),
    (scope(3, alias=[]), "sendTo.alias must not be empty"),
    (scope(3, alias=["a", 7]), "sendTo.alias[1] must be a string"),
    (scope(3, alias=["a", ""]), None),
    (scope(3, alias=NAME_40), None),
    (scope(3, alias=NAME_40 + "b"), "sendTo.alias must have 1 to 40 bytes"),
    (scope(4, alias=["a", "b" * 41]), None),
    (scope(4, alias=["a"] * 1000), None),
    (scope(4, alias=["a"] * 1001), "sendTo.alias must have at most 1000 entries"),
    # token
    (scope(5, token={"android": "t"}), None),
    (scope(5, token={"android": ["t"] * 1000}), None),
    (scope(5, token={"android": ["t"] * 1001}), "sendTo.token.android must have at most 1000 entries"),
    (scope(5, token={"android": []}), "sendTo.token.android must not be empty"),
    (scope(5, token={"android": ""}), "sendTo.token.android must not be empty"),
    (scope(5, token={"android": 5}), "sendTo.token.android must be a string or a list"),
    (scope(5, token={"android": ["t", None]}), "sendTo.token.android[1] must be a string"),
    (scope(5, token="t"), "sendTo.token must be an object"),
    (scope(5), "sendTo.token is missing"),
    (scope(5, token={}), "sendTo.token must name tokens of android or ios"),
    (scope(5, token={"ios": TOKEN}), "sendTo.appkey.ios is missing: sendTo.token.ios needs it"),
    (scope(5, appkey={"ios": IOS}, token={"android": "t"}), "sendTo.appkey.android is missing: sendTo.token.android"),
    (scope(5, appkey={"ios": IOS}, token={"ios": TOKEN}), None),
    (scope(5, appkey={"ios": IOS}, token={"ios": [TOKEN]}), None),
    (scope(5, appkey={"ios": IOS}, token={"ios": {IOS: TOKEN}}), "sendTo.token.ios must be a string or a list"),
    (scope(5, appkey={"android": ANDROID, "ios": IOS}, token={"ios": TOKEN}), None),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": {IOS: TOKEN, IOS_2: [TOKEN, "cd" * 100]}}), None),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": {IOS: TOKEN}}), None),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": TOKEN}), "sendTo.token.ios must be an object"),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": {}}), "sendTo.token.ios must not be empty"),
    (
        scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS_2: TOKEN}}),
        f"sendTo.token.ios.{IOS_2} is not one of sendTo.appkey.ios",
    ),
    (scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: 7}}), f"sendTo.token.ios.{IOS} must be a string or a list"),
    (scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: [TOKEN, 7]}}), f"sendTo.token.ios.{IOS}[1] must be a string"),
    (
        scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: [TOKEN] * 1001}}),
        f"sendTo.token.ios.{IOS} must have at most 1000",
    ),
    *((scope(5, appkey={"ios": IOS}, token={"ios": token}), None) for token in IN_ORDER),
    *(
        (scope(5, appkey={"ios": IOS}, token={"ios": token}), "sendTo.token.ios is no iOS token")
        for token in OUT_OF_ORDER
    ),
    # an entry of a list that is no token fails alone
    *(
        (scope(5, appkey={"ios": IOS}, token={"ios": [TOKEN, bad]}), None)
        for bad in ("ab" * 31, "", "(null)", "undefined", TOKEN + "\n", "{length = 32, bytes = 0xab00 ... 00 }")
    ),
    (scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: [TOKEN, TOKEN, ""]}}), None),
    # tag and stag
    (scope(6, tag=[[1, 2], [3]]), None),
    (scope(6, tag=[1, 2]), None),
    (scope(6, not_tag=[[1]]), None),
    (scope(6, tag=[[1]], not_tag=[[2]]), None),
    (scope(6, tag=[[-32727, 32727]]), None),
    (scope(6, tag=[[-32728]]), "sendTo.tag[0][0] must be an integer from -32727 to 32727"),
    (scope(6, not_tag=[[0, 32728]]), "sendTo.not_tag[0][1] must be an integer from -32727 to 32727"),
    (scope(6, tag=[32728]), "sendTo.tag[0] must be an integer from -32727 to 32727"),
    (scope(6, tag=[["1", "-2"], ["3"]], not_tag=[["4"]]), None),
    (scope(6, tag=["1", 2]), None),
    (scope(6, tag=[[1.0]]), None),
    (scope(6, tag=[[1, "a"]]), "sendTo.tag[0][1] must be an integer"),
    (scope(6, tag=["a"]), "sendTo.tag[0] must be an integer or a list"),
    (scope(6, tag=[["1"], ["32728"]]), "sendTo.tag[1][0] must be an integer from -32727 to 32727"),
    (scope(6, tag=[[1.5]]), "sendTo.tag[0][0] must be an integer"),
    (scope(6, tag=[1, [2]]), "sendTo.tag must be a list of lists"),
    (scope(6, tag=[[]]), "sendTo.tag[0] must not be empty"),
    (scope(6, tag=5), "sendTo.tag must be a list"),
    (scope(6), "sendTo.tag is missing: name a tag, not_tag, stag or not_stag"),
    (scope(6, tag=[], stag=None), "sendTo.tag is missing: name a tag, not_tag, stag or not_stag"),
    (scope(6, stag=[["a", "b"], ["c"]], not_stag=[["d"]]), None),
    (scope(6, stag=["a", "b"]), None),
    (scope(6, stag=[["a" * 40]]), None),
    (scope(6, stag=[[NAME_40]]), None),
    (scope(6, stag=[["a"], ["b", "世" * 40]], not_stag=["😀" * 40]), None),
    (scope(6, stag=[["a"], ["b", "世" * 41]]), "sendTo.stag[1][1] must have at most 40 characters"),
    (scope(6, not_stag=["a", "a" * 41]), "sendTo.not_stag[1] must have at most 40 characters"),
    (scope(6, stag=[["a", ""]]), "sendTo.stag[0][1] must not be empty"),
    (scope(6, stag=[["a", 1]]), "sendTo.stag[0][1] must be a string"),
    (scope(6, tag=[[1]], stag=[["a"]]), "sendTo.stag and sendTo.not_stag cannot be combined"),
    (scope(6, not_tag=[[1]], not_stag=[["a"]]), "sendTo.stag and sendTo.not_stag cannot be combined"),
    (scope(6, tag=[[1]], stag=[], not_stag=None), None),
    (scope(6, tag=[[1]], token={"android": "t"}), "sendTo: token or alias cannot be combined with a filter"),
    (scope(3, alias="a", stag=[["a"]]), "sendTo: token or alias cannot be combined with a filter"),
    (scope(5, token={"android": "t"}, optfilter={"android": {}}), "sendTo: token or alias cannot be combined"),
    (scope(1, tag="read by nobody", alias=7), "sendTo: token or alias cannot be combined with a filter"),
    # the size of a filter
    (scope(6, tag=[[1, 2]] * 1000), None),
    (scope(6, tag=[[1]] * 1001), "sendTo.tag must have at most 1000 entries"),
    (scope(6, not_stag=[["a"]] * 1001), "sendTo.not_stag must have at most 1000 entries"),
    (scope(6, stag=[["a"] * 100], not_stag=["a"] * 100), None),
    (scope(6, stag=[["a"], ["a"] * 101]), "sendTo.stag[1] must have at most 100 entries"),
    (scope(6, not_tag=[[1]] * 7 + [[1] * 101]), "sendTo.not_tag[7] must have at most 100 entries"),
    (scope(6, tag=[1] * 101), "sendTo.tag must have at most 100 entries, because a flat list is one group"),
    (scope(6, tag=[[1] * 10] * 400, not_tag=[[1] * 10] * 600), None),
    (
        scope(6, tag=[[1] * 10] * 400, not_tag=[[1] * 10] * 600 + [[1]]),
        "sendTo.not_tag: the filter has 10001 tags and values in all, but at most 10000",
    ),
    (scope(6, stag=[["a" * 40] * 7] * 1000), "sendTo.stag: the filter has 2"),
    (filtered(phone=["p"] * 1000, channel_not=["c"] * 1000), None),
    (filtered(phone=["p"] * 1001), f"{FILTER}.phone must have at most 1000 entries"),
    (filtered(locate=["北京市"] * 1001), f"{FILTER}.locate must have at most 1000 entries"),
    (filtered(model=[{"b": "m"}] * 1001), f"{FILTER}.model must have at most 1000 entries"),
    (filtered(model={f"b{n}": "m" for n in range(1001)}), f"{FILTER}.model must have at most 1000 entries"),
    (filtered(model=[{"b": ["m"] * 1001}]), f"{FILTER}.model[0].b must have at most 1000 entries"),
    (filtered(model=[{"b": ["m"] * 1000}] * 11), f"{FILTER}: the filter has 11000 tags and values in all"),
    (filtered(phone=["p" * 300] * 1000), f"{FILTER}: the filter has 303006 bytes in all, but at most 262144"),
    # optfilter
    (scope(7), "sendTo.optfilter is missing"),
    (scope(7, optfilter={}), f"{FILTER} is missing"),
    (scope(7, optfilter={"ios": {}}), f"{FILTER} is missing"),
    (scope(7, optfilter=[]), "sendTo.optfilter.android is missing"),
    (filtered(), f"{FILTER} must name at least one option"),
    (filtered(locate=None), f"{FILTER} must name at least one option"),
    (filtered(locate=sorted(REGIONS)), None),
    (filtered(locate=["上海"]), f"{FILTER}.locate[0] is not a known region: 上海"),
    (filtered(locate_not=["北京市", "Atlantis"]), f"{FILTER}.locate_not[1] is not a known region: Atlantis"),
    (filtered(osversion=["5.0"], osversion_not=["6"], appversion=["1"], appversion_not=["2"]), None),
    (filtered(channel=["c"], channel_not=["d"], phone=["p"], phone_not=["q"], operator=["cm"]), None),
    (filtered(operator_not=["any other carrier"]), None),
    (filtered(phone="p"), f"{FILTER}.phone must be a list"),
    (filtered(phone=[]), f"{FILTER}.phone must not be empty"),
    (filtered(phone=[7]), f"{FILTER}.phone[0] must be a string"),
    (filtered(phone=[""]), f"{FILTER}.phone[0] must not be empty"),
    (filtered(colour=["red"]), f"{FILTER}.colour is not known"),
    (filtered(activity_8={">": 1}), f"{FILTER}.activity_8 is not known"),
    (filtered(model={"b": "m"}, model_not={"b": ["m", "n"]}), None),
    (filtered(model=[{"b": "m"}, {"b": "n"}]), None),
    (filtered(model=["m"]), f"{FILTER}.model[0] must be an object"),
    (filtered(model={"a": "m", "b": 7}), f"{FILTER}.model.b must be a string or a list"),
    (filtered(model={}), f"{FILTER}.model must not be empty"),
    (filtered(model=[{"b": "m"}, {"": "m"}]), f"{FILTER}.model[1]: a key must not be empty"),
    (filtered(activity_1={">": 0}, activity_7={"<": 1}, activity_30={">=": 1, "<=": 9}, activity_90={"=": 3}), None),
    (filtered(activity_7={}), f"{FILTER}.activity_7 must not be empty"),
    (filtered(activity_7={"==": 1}), f"{FILTER}.activity_7 must compare with one of >, <, >=, <=, =, not with =="),
    (filtered(activity_7={">": "1"}), None),
    (filtered(activity_7={">": "x"}), f"{FILTER}.activity_7.> must be an integer"),
    (filtered(activity_7={"<": 9, ">": -1}), f"{FILTER}.activity_7.> must be an integer from 0 to 4294967295"),
    (filtered(activity_7=[1]), f"{FILTER}.activity_7 must be an object"),
    (scope(8, tag=[[1]], optfilter={"android": {"phone": ["p"]}}), None),
    (scope(8, tag=[[1]]), "sendTo.optfilter is missing"),
    (scope(8, optfilter={"android": {"phone": ["p"]}}), "sendTo.tag is missing"),
]


@pytest.mark.parametrize(("body", "problem"), ROWS)
def test_rule(body: dict[str, Any], problem: str | None) -> None:
    check_rule(body, problem)


async def test_every_rule_is_answered_through_http(installation: EdgeInstallation) -> None:
    await check_rules_through_http(installation, ROWS)
