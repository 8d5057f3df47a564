"""The calls of the v2 door besides pushing: timed tasks, string tags, invalid tokens, statistics."""

from typing import Annotated, Any

import msgspec

from edge.openapi import kinds
from edge.openapi.document import SIGN_TEXT, Operation, Refusal
from edge.openapi.schema import completed, one_of
from edge.openapi.v2_answers import (
    FIGURES,
    Done,
    InvalidTokens,
    Statistics,
    TagsChanged,
    TagsFound,
    TaskDetail,
    TaskPage,
    TaskRecord,
    TokenOutcome,
    TokenTags,
    by_app,
)
from edge.openapi.v2_push import Appkeys
from edge.openapi.v2_push_examples import ANDROID, ANDROID_TOKEN, IOS, IOS_TOKEN, SECOND_IOS, SIGN
from edge.v2 import apps
from edge.v2.statistics import statistics
from edge.v2.tags import requests as tag_requests
from edge.v2.tasks import requests as task_requests

_TaskKey = Annotated[str, msgspec.Meta(min_length=1, max_length=64, extra_json_schema={"format": "task-key"})]
TASK_KEY = "f3c2a7d09be84d2c8d6a1b0e5c4f7a98"
_Appkey = Annotated[str, kinds.text("appkey")]
_Apps = msgspec.Meta(min_length=1, max_length=apps.MAX_APPS, extra_json_schema={"uniqueItems": True})
_OneOrMoreApps = _Appkey | Annotated[list[_Appkey], _Apps]


_Stags = Annotated[list[kinds.Name], msgspec.Meta(min_length=1, max_length=tag_requests.MAX_STAGS)]
_OfTokens = msgspec.Meta(min_length=1, max_length=tag_requests.MAX_TOKENS)
_OfApps = msgspec.Meta(min_length=1)
_StagsOfTokens = Annotated[dict[kinds.AnyToken, _Stags], _OfTokens]
_Changes = one_of(_StagsOfTokens, Annotated[dict[_Appkey, _StagsOfTokens], _OfApps])
_TokenList = Annotated[list[kinds.AnyToken], _OfTokens]
_Queries = one_of(_TokenList, Annotated[dict[_Appkey, _TokenList], _OfApps])
_Sign: dict[str, Any] = {"sign": kinds.Sign}
_ByPlatform: dict[str, Any] = {"appkey": Appkeys, **_Sign}
_TaskListRequest = completed(task_requests.TaskListBody, "TaskListRequest", **_ByPlatform)
_TaskRequest = completed(task_requests.TaskBody, "TaskRequest", task_key=_TaskKey, **_ByPlatform)
_TagChange = completed(
    tag_requests.TagBody, "TagChange", params=_Changes, param=_Changes, appkey=_OneOrMoreApps, **_Sign
)
_TagQuery = completed(tag_requests.TagBody, "TagQuery", params=_Queries, param=_Queries, appkey=_OneOrMoreApps, **_Sign)


class InvalidTokensRequest(msgspec.Struct):
    """POST /v2/errortoken."""

    appkey: kinds.IosAppkey | kinds.IosApps
    sign: kinds.Sign


_StatisticsRequest = completed(
    statistics.StatisticsBody,
    "StatisticsRequest",
    param=completed(
        statistics.Param,
        "StatisticsParam",
        category=statistics.Category,
        dur=completed(statistics.Duration, first=kinds.Date | None, last=kinds.Date | None) | None,
        info=statistics.Info,
        info_small=statistics.Info,
        msgid=statistics.MessageId,
        usertype=statistics.UserType,
    ),
    appkey=_Appkey,
    **_Sign,
)

_TASK = {"appkey": {"android": ANDROID, "ios": IOS}, "task_key": TASK_KEY, "sign": SIGN}
_TAGS = {"appkey": ANDROID, "action": "stag", "sign": SIGN}
_TAGS_OF_TWO = {**_TAGS, "appkey": [ANDROID, IOS]}
_CHANGES = {
    "one app": {**_TAGS, "params": {ANDROID_TOKEN: ["news", "vip"]}},
    "several apps": {
        **_TAGS_OF_TWO,
        "params": {ANDROID: {ANDROID_TOKEN: ["news"]}, IOS: {IOS_TOKEN: ["news"]}},
    },
    "param": {**_TAGS, "param": {ANDROID_TOKEN: ["vip"]}},
}
_QUERIES = {
    "one app": {**_TAGS, "params": [ANDROID_TOKEN]},
    "several apps": {**_TAGS_OF_TWO, "params": {ANDROID: [ANDROID_TOKEN], IOS: [IOS_TOKEN]}},
    "param": {**_TAGS, "param": [ANDROID_TOKEN]},
}


def _statistics(kind: int, param: Any) -> dict[str, Any]:
    return {"appkey": ANDROID, "type": kind, "param": param, "sign": SIGN}


_STATISTICS = {
    "connections of today by region": _statistics(0, {"category": 1, "Info": "all", "dur": {"timeScope": 0}}),
    "all broadcasts": _statistics(1, {"msgid": -1}),
    "new users of some days": _statistics(
        2, {"usertype": 0, "dur": {"timeScope": 3, "from": "2026-01-01", "to": "2026-01-31"}}
    ),
    "logins of a carrier": _statistics(3, {"category": 2, "info": "cm", "dur": {"timeScope": 2}}),
}
_PAGE = {"appkey": {"android": ANDROID}, "order": 1, "page_num": 1, "page_size": 50, "sign": SIGN}
OPERATIONS = [
    Operation(
        "post", "/v2/timedtasklist", "Timed pushes, a page at a time", _TaskListRequest, (TaskPage, Refusal),
        {"newest first": _PAGE},
    ),
    Operation(
        "post", "/v2/timedtaskdetail", "One timed push", _TaskRequest, (TaskDetail, Refusal), {"a task": _TASK}
    ),
    Operation(
        "delete", "/v2/timed", "Cancel a timed push that was not sent yet", _TaskRequest, (Done, Refusal),
        {"a task": _TASK},
    ),
    Operation(
        "post", "/v2/device", "Give devices string tags", _TagChange, (TagsChanged, by_app(TagsChanged), Refusal),
        _CHANGES,
    ),
    Operation(
        "delete", "/v2/device", "Take string tags from devices", _TagChange,
        (TagsChanged, by_app(TagsChanged), Refusal), _CHANGES,
    ),
    Operation(
        "post", "/v2/deviceinfo", "String tags of devices", _TagQuery, (TagsFound, by_app(TagsFound), Refusal),
        _QUERIES,
    ),
    Operation(
        "post", "/v2/errortoken", "iOS tokens that are of no use any more", InvalidTokensRequest,
        (InvalidTokens, Refusal),
        {
            "one app": {"appkey": IOS, "sign": SIGN},
            "several apps": {"appkey": [IOS, SECOND_IOS], "sign": SIGN},
        },
    ),
    Operation(
        "post", "/v2/statistics", "Figures", _StatisticsRequest, (Statistics, Refusal), _STATISTICS
    ),
]  # fmt: skip
PARTS = (TaskRecord, TokenOutcome, TokenTags, TagsChanged, TagsFound, *FIGURES)
_SIGN_TEXT = SIGN_TEXT + " of the apps: Android, then iOS in the order of the appkeys."
_LISTED_SIGN_TEXT = SIGN_TEXT + " of the apps in the order of the appkeys."
_TASK_TEXTS = {
    "appkey": "Whose tasks; of a task for both platforms one platform's app is enough.",
    "sign": _SIGN_TEXT,
    "order": "By creation: 0 oldest first, 1 newest first; 0 unless given.",
    "page_num": "The page, from 1.",
    "page_size": "Tasks on a page.",
}
_TAG_TEXTS = {
    "appkey": "One app or a list of them.",
    "action": "Always stag.",
    "param": "The same as params.",
    "sign": _LISTED_SIGN_TEXT,
}
TEXTS = {
    **{f"TaskListRequest.{field}": text for field, text in _TASK_TEXTS.items()},
    **{f"TaskRequest.{field}": _TASK_TEXTS[field] for field in ("appkey", "sign")},
    "TaskRequest.task_key": "The task, from the answer that made it.",
    **{f"{name}.{field}": text for name in ("TagChange", "TagQuery") for field, text in _TAG_TEXTS.items()},
    "TagChange.params": "From token to string tags; with a list of apps from appkey to such an object. Needed.",
    "TagQuery.params": "Tokens; with a list of apps from appkey to such a list. Needed.",
    "InvalidTokensRequest.appkey": "One app or a list of them.",
    "InvalidTokensRequest.sign": _LISTED_SIGN_TEXT,
    "StatisticsRequest.appkey": "The app.",
    "StatisticsRequest.type": "0 long connections, 1 broadcasts, 2 registered users, 3 logged-in users.",
    "StatisticsRequest.param": "Of what, and when.",
    "StatisticsRequest.sign": SIGN_TEXT + ".",
    "StatisticsParam.category": "0 none, 1 region (not with type 2), 2 carrier, 3 channel, 4 SDK version, 5 brand,"
    " 6 resolution, 7 OS version, 8 app version (6 to 8 not with type 3); 0 unless given.",
    "StatisticsParam.dur": "The days; not read with type 1.",
    "StatisticsParam.Info": "A value of the category, or all for one row a value; needed with a category.",
    "StatisticsParam.info": "The same as Info.",
    "StatisticsParam.msgid": "With type 1: the message; -1, or absent, for a list of messages.",
    "StatisticsParam.usertype": "With type 2: 0 new users, 1 all until then; 0 unless given.",
    "Duration.timeScope": "0 today, 1 yesterday, 2 the last seven days, 3 from and to.",
    "Duration.from": "The first day, with timeScope 3.",
    "Duration.to": "The last day, at most 400 days in all.",
    "TaskPage.data": "The tasks of the page.",
    "TaskPage.pagecount": "How many pages there are.",
    "TaskDetail.data": "The task.",
    "TaskRecord.TaskKey": "Names the task.",
    "TaskRecord.CreateTime": "When it was made.",
    "TaskRecord.SendTime": "When it is sent.",
    "TaskRecord.MsgContent": "The content.",
    "TaskRecord.Status": "unsend: not yet sent; send: sent; cancel: cancelled.",
    **{f"{name}.token": "The device." for name in ("TokenOutcome", "TokenTags")},
    **{f"{name}.result": "0, 401 where the token is unknown." for name in ("TokenOutcome", "TokenTags")},
    "TokenOutcome.result": "0; 400 where the device has too many tags; 401 where the token is unknown.",
    "TokenTags.infolist": "Its string tags.",
    "TagsChanged.detailsinfo": "An entry a token, in the order of the request.",
    "TagsFound.detailsinfo": "An entry a token, in the order of the request.",
    "InvalidTokens.data": "Tokens by appkey, found invalid last first.",
    "Statistics.data": "The rows.",
    "ConnectionFigures.avgCount": "Connections on average.",
    "ConnectionFigures.maxCount": "At most.",
    "ConnectionFigures.minCount": "At least.",
    "UserFigures.count": "Users.",
    "LoginFigures.date": "The day.",
    "BroadcastFigures.msgid": "The message.",
    "BroadcastFigures.sendTime": "When it was sent, in the service's time zone.",
    "BroadcastFigures.target": "Devices in its audience.",
    **{
        f"BroadcastFigures.{name}": f"Devices: {name}."
        for name in ("sent", "received", "shown", "clicked", "failed", "expired", "cancelled")
    },
    **{f"LoginFigures.{days}": f"Within {days} days." for days in (1, 2, 3, 4, 5, 6, 7, 30)},
    **{f"{name}.date": "The day." for name in ("ConnectionFigures", "UserFigures")},
    **{f"{figures.__name__}.info": "The value of the category." for figures in FIGURES},
    **{
        f"{name}.result": "Success."
        for name in ("Done", "TaskPage", "TaskDetail", "TagsChanged", "TagsFound", "InvalidTokens", "Statistics")
    },
    **{
        f"{name}.desc": "In words."
        for name in ("Done", "TokenOutcome", "TokenTags", "TagsChanged", "TagsFound", "InvalidTokens", "Statistics")
    },
}
