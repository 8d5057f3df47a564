"""Rules of the targets of POST /push and POST /timed_msg, one row each: at its limit and past it.

`None` stands for accepted.
"""

from services.domain.regions import REGIONS
from testkit.edge.legacy_client import Row

NAME_40 = "世" * 13 + "a"
REGION = sorted(REGIONS)[0]


def optfilter_of(size: int) -> dict[str, list[str]]:
    """Return a filter of this many bytes as compact JSON, with characters of three bytes in it."""
    empty = len('{"phone":["世"]}'.encode())
    return {"phone": ["世" + "a" * (size - empty)]}


MISSPELT = [
    *((key, "token") for key in ("tokens", "Token", "TOKENS", "tokn", "tokenn")),
    *((key, "alias") for key in ("aliases", "Alias", "aliass", "alia")),
    *((key, "filter") for key in ("filters", "Filter", "filte")),
    *((key, "filter_v2") for key in ("filterv2", "filter_v3", "filter_V2", "filter-v2")),
    *((key, "optfilter") for key in ("optFilter", "opt_filter", "optfilters")),
]
TARGETS: list[Row] = [
    ({"filter": [1]}, None),
    ({"filter": [1, "2", -3, "-4"]}, None),
    ({"filter": [-32767, 32767]}, None),
    ({"filter": [-32768]}, "filter[0] must be an integer from -32767 to 32767"),
    ({"filter": [1, 32768]}, "filter[1] must be an integer from -32767 to 32767"),
    ({"filter": ["32768"]}, "filter[0] must be an integer from -32767 to 32767"),
    ({"filter": ["x"]}, "filter[0] must be an integer"),
    ({"filter": []}, "filter must not be empty"),
    ({"filter": [[1]]}, "filter[0] must be an integer"),
    ({"filter": [1.5]}, "filter[0] must be an integer"),
    ({"filter": 5}, "filter must be a list"),
    *(({name: None}, f"{name} must not be null") for name in ("filter", "filter_v2", "optfilter", "token", "alias")),
    ({"token": "t", "alias": None}, "alias must not be null"),
    ({"filter": [1], "optfilter": None}, "optfilter must not be null"),
    *(({key: value}, f"{key} is not known; the field is {meant}") for key, meant in MISSPELT for value in ("x", None)),
    (dict.fromkeys(("tag", "stag", "title_", "filtering", "tokenizer", "aka", "aliasing", "filter_by", "x"), 1), None),
    ({"filter": [1] * 100}, None),
    ({"filter": [1] * 101}, "filter must have at most 100 entries"),
    ({"filter_v2": [[1]] * 1000}, None),
    ({"filter_v2": [[1]] * 1001}, "filter_v2 must have at most 1000 entries"),
    ({"filter_v2": [[1], [2] * 101]}, "filter_v2[1] must have at most 100 entries"),
    ({"filter_v2": [[1] * 100] * 100}, None),
    (
        {"filter_v2": [[1] * 100] * 100, "optfilter": {"phone": ["p"]}},
        "filter_v2: the filter has 10001 tags and values in all, but at most 10000",
    ),
    ({"filter_v2": [[1, 2], ["3"]]}, None),
    ({"filter_v2": [[-32767, 32767]]}, None),
    ({"filter_v2": [[1], [32768]]}, "filter_v2[1][0] must be an integer from -32767 to 32767"),
    ({"filter_v2": [[1], [0, "-32768"]]}, "filter_v2[1][1] must be an integer from -32767 to 32767"),
    ({"filter_v2": []}, "filter_v2 must not be empty"),
    ({"filter_v2": [[]]}, "filter_v2[0] must not be empty"),
    ({"filter_v2": [1, 2]}, "filter_v2[0] must be a list"),
    ({"filter_v2": "x"}, "filter_v2 must be a list"),
    ({"filter": [1], "filter_v2": [[1]]}, "filter and filter_v2 cannot both be given"),
    ({"filter": [1], "optfilter": {"phone": ["x"]}}, None),
    ({"filter_v2": [[1]], "optfilter": {"phone": ["x"]}}, None),
    ({"token": "t"}, None),
    ({"token": ["t"] * 1000}, None),
    ({"token": ["t"] * 1001}, "token must have at most 1000 entries"),
    ({"token": []}, "token must not be empty"),
    ({"token": ""}, "token must not be empty"),
    ({"token": ["t", ""]}, None),
    ({"token": ["t", 5]}, "token[1] must be a string"),
    ({"token": 5}, "token must be a string or a list"),
    ({"token": {"a": 1}}, "token must be a string or a list"),
    ({"alias": "a"}, None),
    ({"alias": NAME_40}, None),
    ({"alias": NAME_40 + "a"}, "alias must have 1 to 40 bytes"),
    ({"alias": ["a", NAME_40]}, None),
    ({"alias": ["a", NAME_40 + "a"]}, None),
    ({"alias": ["a", ""]}, None),
    ({"token": ["t", "", "x" * 300]}, None),
    ({"alias": [f"a{n}" for n in range(1000)]}, None),
    ({"alias": [f"a{n}" for n in range(1001)]}, "alias must have at most 1000 entries"),
    ({"alias": []}, "alias must not be empty"),
    ({"alias": ""}, "alias must not be empty"),
    ({"alias": [None]}, "alias[0] must be a string"),
    ({"alias": True}, "alias must be a string or a list"),
    ({"alias": "a", "alias_send_all": 0}, None),
    ({"alias": "a", "alias_send_all": "1"}, None),
    ({"alias": "a", "alias_send_all": 2}, "alias_send_all must be an integer from 0 to 1"),
    ({"alias": "a", "alias_send_all": "all"}, "alias_send_all must be an integer"),
    ({"alias": "a", "alias_send_all": False}, "alias_send_all must be an integer"),
    ({"token": "t", "alias": "a"}, None),
    *(
        ({name: "x", **selected}, "token or alias cannot be combined with a filter")
        for name in ("token", "alias")
        for selected in ({"filter": [1]}, {"filter_v2": [[1]]}, {"optfilter": {"phone": ["x"]}})
    ),
]


OPTFILTER: list[Row] = [
    *(({"optfilter": {name: ["x"]}}, None) for name in ("osversion", "appversion", "channel", "phone", "operator")),
    ({"optfilter": {"locate": [REGION]}}, None),
    ({"optfilter": {"locate": ["Atlantis"]}}, "optfilter.locate[0] is not a known region"),
    *(
        ({"optfilter": {f"activity_{days}": {comparison: 3}}}, None)
        for days in (1, 7, 30, 90)
        for comparison in (">", "<", ">=", "<=", "=")
    ),
    ({"optfilter": {"activity_7": {"!=": 3}}}, "optfilter.activity_7 must compare with one of"),
    ({"optfilter": {"activity_7": {">": "3"}}}, None),
    ({"optfilter": {"activity_7": {">": "x"}}}, "optfilter.activity_7.> must be an integer"),
    ({"optfilter": {"activity_7": {">": 10**30}}}, "optfilter.activity_7.> must be an integer from 0 to"),
    ({"optfilter": {"activity_2": {">": 3}}}, "optfilter.activity_2 is not known"),
    *(
        ({"optfilter": {f"{name}_not": ["x"]}}, f"optfilter.{name}_not is not known")
        for name in ("locate", "osversion", "appversion", "channel", "phone", "operator")
    ),
    ({"optfilter": {"phone": ["b"], "model": [{"b": "m"}]}}, "optfilter.model is not known"),
    ({"optfilter": {"model_not": [{"b": "m"}]}}, "optfilter.model_not is not known"),
    ({"optfilter": {}}, "optfilter must name at least one option"),
    ({"optfilter": {"phone": []}}, "optfilter.phone must not be empty"),
    ({"optfilter": {"phone": "x"}}, "optfilter.phone must be a list"),
    ({"optfilter": {"phone": [5]}}, "optfilter.phone[0] must be a string"),
    ({"optfilter": []}, "optfilter must name at least one option"),
    ({"optfilter": "x"}, "optfilter must be an object"),
    ({"optfilter": optfilter_of(2000)}, None),
    ({"optfilter": optfilter_of(2001)}, "optfilter must have at most 2000 bytes"),
]
