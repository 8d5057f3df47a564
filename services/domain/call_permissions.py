"""The roles that may call each method, where certificates authenticate calls. Any other method is refused to all."""

from collections.abc import Mapping

from services.net.rpc.caller import OPERATOR

EVERY_ROLE = (
    *("edge", "gateway", "registry", "targeting", "scheduling", "delivery", "analytics", "accounts", "console"),
    "webhooks",
)

_BY_SERVICE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "protos.runtime.v1.PositionsService": {"Await": EVERY_ROLE},
    "protos.runtime.v1.ClockService": {"Now": EVERY_ROLE},
    "protos.runtime.v1.ProcessService": {"Check": (OPERATOR,), "GetMetrics": (OPERATOR,)},
    "protos.runtime.v1.ParentService": dict.fromkeys(
        ("Append", "CheckWritable", "WatchLog", "WatchProcesses", "AskOperations"), (OPERATOR,)
    ),
    "protos.registry.v1.RegistryService": {
        "CreateApp": (OPERATOR, "console"),
        "ListApps": (OPERATOR,),
        "GetApp": (OPERATOR,),
        "UpdateApp": (OPERATOR, "console"),
        "RotateSecret": (OPERATOR, "console"),
        "ChangeWebhook": (OPERATOR, "console"),
        "SaveAudience": ("console",),
        "RemoveAudience": ("console",),
        "ListTeamWebhooks": (OPERATOR,),
        "PauseApps": (OPERATOR, "console"),
        "ResumeApps": (OPERATOR, "console"),
        "RevokeDeviceKey": (OPERATOR,),
        "RevokeAppKeys": (OPERATOR,),
        "ErasePerson": (OPERATOR, "accounts"),
        "NoteErasureDone": ("console",),
        "FindDevices": ("edge", "gateway", "registry", "scheduling", "console", "accounts"),
        "FindAliases": ("edge", "scheduling", "delivery", "console", "accounts", "registry"),
        "GetDevices": ("edge", "gateway", "console", "registry"),
        "GetTokens": ("delivery", "console", "webhooks"),
        "GetAddresses": ("delivery",),
        "FindAddresses": ("edge",),
        "ListAddresses": ("console",),
        "ListInvalidTokens": ("edge",),
        "TakeBroadcasts": ("edge", "console"),
        "NoteQuotaReached": ("edge", "gateway", "console"),
        "ReserveDevice": ("edge", "gateway"),
        **dict.fromkeys(("RotateKeys", "CountDevicesNotBack", "DropFormerKeys", "Seal", "NoteKeysCopied"), (OPERATOR,)),
        "NoteKeyFingerprint": ("edge", "gateway", "delivery", "accounts", "console", "webhooks"),
    },
    "protos.targeting.v1.TargetingService": {
        "Resolve": ("delivery", "console", "accounts"),
        "FindAddressed": ("delivery",),
        "WaitAddressed": ("delivery",),
        "CountValues": ("console",),
        "CountAudience": ("console",),
    },
    "protos.scheduling.v1.SchedulingService": {
        "GetTask": ("edge", "console"),
        "ListTasks": ("edge", "console"),
        "GetClaim": ("edge", "console"),
        "GetStoredBytes": ("edge", "console"),
    },
    "protos.delivery.v1.DeliveryService": {"Attach": ("gateway",), "GetBroadcast": ("edge", "gateway", "console")},
    "protos.delivery.v1.AppleStateService": {"GetAppleState": (OPERATOR, "console")},
    "protos.delivery.v1.AliasesService": {"CheckAliases": ("edge", "gateway")},
    "protos.delivery.v1.ReportsService": {"RecordReports": ("edge",)},
    "protos.delivery.v1.CapacityService": {"HasCapacity": ("edge", "scheduling", "console")},
    "protos.delivery.v1.ChannelsService": {"CheckChannel": (OPERATOR,)},
    "protos.delivery.v1.VirtualPhonesService": {"Watch": (OPERATOR,)},
    "protos.accounts.v1.AccountsService": {
        "SealAnew": (OPERATOR,),
        **dict.fromkeys(
            (
                "CreateUser",
                "UpdateUser",
                "ResetPassword",
                "GetUsers",
                "ListUsers",
                "CreateTeam",
                "UpdateTeam",
                "SetMember",
                "SetTestDevices",
                "GiveApp",
                "ListTeams",
                "CreateToken",
                "RevokeToken",
                "ListTokens",
                "ListChanges",
                "DecideChange",
                "ErasePerson",
            ),
            (OPERATOR, "console"),
        ),
    },
    "protos.accounts.v1.LogInService": dict.fromkeys(
        (
            "InviteFirstAdministrator",
            "LogIn",
            "LogInWithSubject",
            "EndSubjectSessions",
            "CheckLink",
            "UseLink",
            "ChangePassword",
            "StartTotp",
            "SetTotp",
            "EndSession",
            "NoteTokenUses",
            "NoteDataRead",
        ),
        ("console",),
    ),
    "protos.accounts.v1.DraftsService": {
        **dict.fromkeys(("SubmitDraft", "DecideDraft", "GetDrafts", "ListDrafts", "AdmitPush"), ("console",)),
        "AdmitTask": ("scheduling",),
    },
    "protos.webhooks.v1.WebhooksService": {
        **dict.fromkeys(("ListStates", "ListAttempts", "SendTest", "Resend"), (OPERATOR, "console")),
        "WatchEvents": ("console",),
    },
    "protos.analytics.v1.AnalyticsService": {
        "AuditPush": (OPERATOR, "console"),
        "AuditDevice": (OPERATOR, "console"),
        "AuditApp": (OPERATOR, "console"),
        "AuditActions": (OPERATOR, "console"),
        "ExportPush": (OPERATOR,),
        "ListAcks": ("edge",),
        "Statistics": ("edge", "console"),
        "LatestPushes": (OPERATOR, "console"),
        "PushSpeed": (OPERATOR, "console"),
        "PushStates": ("console",),
        "ListRefusals": ("console",),
        "ListPushDevices": ("console",),
        "CatchUp": ("analytics",),
    },
}

PERMISSIONS = {
    f"/{service}/{method}": frozenset(roles)
    for service, methods in _BY_SERVICE.items()
    for method, roles in methods.items()
}
"""The roles that may call a method, by the method's full name, such as `/protos.registry.v1.RegistryService/GetApp`."""
