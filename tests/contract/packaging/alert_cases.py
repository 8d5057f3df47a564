"""Test cases for the alerts of deploy/alerts.yml: made-up series, and the minute in which the alert fires."""

from typing import NamedTuple

EDGE = 'job="carillon",instance="edge:8080"'


class Case(NamedTuple):
    """Series with a value for each minute from 0 on. The alert is quiet at `quiet_m` and fires at `fires_m`."""

    series: dict[str, str]
    quiet_m: int
    fires_m: int
    labels: dict[str, str]
    summary: str


CASES = {
    "CarillonProcessDown": Case(
        {f"up{{{EDGE}}}": "1+0x5 0+0x10"},
        7,
        8,
        {"instance": "edge:8080", "job": "carillon"},
        "edge:8080 does not answer",
    ),
    "CarillonGone": Case(
        {f"up{{{EDGE}}}": "1+0x5 0+0x3 _x20"}, 7, 8, {}, "no process of Carillon answers, or Prometheus looks for none"
    ),
    "CarillonRoleGone": Case(
        {
            'carillon_process_info{role="registry",instance="registry-0",version="1",commit="a"}': "1+0x5 _x30",
            'carillon_process_info{role="registry",instance="registry-1",version="1",commit="a"}': "1+0x9 _x30",
            'carillon_process_info{role="edge",instance="edge-a",version="1",commit="a"}': "1+0x5 _x30",
            'carillon_process_info{role="edge",instance="edge-b",version="1",commit="a"}': "_x5 1+0x30",
        },
        16,
        17,
        {"role": "registry"},
        "no process of the role registry is there any more",
    ),
    "CarillonNoOwner": Case(
        {
            'carillon_owner{instance="d-0",role="delivery",shard="0"}': "1+0x5 0+0x20",
            'carillon_owner{instance="d-1",role="delivery",shard="0"}': "0+0x30",
            'carillon_owner{instance="r-1",role="registry",shard="0"}': "0+0x30",
            'carillon_owner{instance="r-0",role="registry",shard="0"}': "1+0x30",
        },
        6,
        7,
        {"role": "delivery", "shard": "0"},
        "nobody owns shard 0 of delivery",
    ),
    "CarillonNoStandby": Case(
        {
            'carillon_standbys{instance="d-0",role="delivery",shard="0"}': "1+0x5 0+0x30",
            'carillon_standbys{instance="d-1",role="delivery",shard="0"}': "1+0x5 stale",
            'carillon_standbys{instance="s-0",role="scheduling",shard="0"}': "0+0x40",
        },
        15,
        16,
        {"role": "delivery", "shard": "0"},
        "shard 0 of delivery has no standby",
    ),
    "CarillonSendingBurnsFast": Case(
        {
            'carillon_delivery_accepted_to_sent_seconds_bucket{le="1.0"}': "0+1000x60 60980+980x60",
            "carillon_delivery_accepted_to_sent_seconds_count": "0+1000x120",
        },
        63,
        118,
        {},
        "1.933% of the last hour's pushes were sent later than a second after their acceptance",
    ),
    "CarillonSendingBurnsSlowly": Case(
        {
            'carillon_delivery_accepted_to_sent_seconds_bucket{le="1.0"}': "0+1000x60 60990+990x400",
            "carillon_delivery_accepted_to_sent_seconds_count": "0+1000x460",
        },
        70,
        420,
        {},
        "1% of the last six hours' pushes were sent later than a second after their acceptance",
    ),
    "CarillonClocksDiffer": Case(
        {
            'carillon_clock_skew_seconds{instance="e",peer="registry-0"}': "0+0x5 -90+0x20",
            'carillon_clock_skew_seconds{instance="e",peer="delivery-0"}': "0.2+0x30",
        },
        10,
        11,
        {"instance": "e", "peer": "registry-0"},
        "the clocks of e and registry-0 differ by 1m 30s",
    ),
    "CarillonNotReady": Case(
        {'carillon_ready{instance="e",worker="1"}': "1+0x20", 'carillon_ready{instance="e",worker="2"}': "1+0x5 0+0x9"},
        8,
        9,
        {"instance": "e"},
        "e runs, and a part of it does not work",
    ),
    "CarillonRestarts": Case(
        {f"process_start_time_seconds{{{EDGE}}}": "1 1 60 60 120 120 180 180 240 240"},
        7,
        8,
        {"instance": "edge:8080"},
        "edge:8080 started 4 times within an hour",
    ),
    "CarillonRequestsFail": Case(
        {
            'carillon_edge_requests_total{interface="v2",result="0"}': "0+300x30",
            'carillon_edge_requests_total{interface="v2",result="400"}': "0+60x30",
            'carillon_edge_requests_total{interface="v2",result="500"}': "0+0x9 0+40x21",
        },
        12,
        25,
        {"interface": "v2"},
        "10% of the app servers' requests to v2 are answered with an error of ours",
    ),
    "CarillonRequestsSlow": Case(
        {
            'carillon_edge_request_seconds_bucket{interface="ios",le="1"}': "0+900x30",
            'carillon_edge_request_seconds_bucket{interface="ios",le="2"}': "0+1000x30",
            'carillon_edge_request_seconds_bucket{interface="ios",le="+Inf"}': "0+1000x30",
        },
        9,
        12,
        {"interface": "ios"},
        "one of a hundred requests to ios takes more than 1.9s",
    ),
    "CarillonHttpFull": Case(
        {'carillon_http_refused_total{instance="e",listener="api",why="full"}': "0+0x5 0+1x20"},
        10,
        13,
        {"instance": "e", "why": "full"},
        "e refuses connections of app servers: full",
    ),
    "CarillonLagging": Case(
        {
            'carillon_lag_records{instance="t",role="targeting",topic="devices"}': "0+0x5 6000+0x20",
            'carillon_lag_records{instance="t",role="targeting",topic="sessions"}': "0+0x5 6000+0x20",
            'carillon_lag_records{instance="a",role="analytics",topic="devices"}': "20000+0x20",
        },
        10,
        11,
        {"instance": "t", "role": "targeting"},
        "targeting on t is 12000 records behind the log",
    ),
    "CarillonChildDown": Case(
        {'carillon_child_up{instance="e",process="analytics"}': "1+0x3 0+0x12"},
        8,
        9,
        {"instance": "e", "process": "analytics"},
        "analytics of e is not ready or ends again and again",
    ),
    "CarillonAnalyticsLagging": Case(
        {'carillon_lag_records{instance="a",role="analytics",topic="deliveries"}': "0+0x5 200000+0x30"},
        20,
        21,
        {"instance": "a"},
        "statistics and audits are 200000 records behind the log",
    ),
    "CarillonDeadLetters": Case(
        {'carillon_records_dead_lettered_total{instance="r",role="registry"}': "_x5 1+0x200"},
        4,
        60,
        {"instance": "r", "role": "registry"},
        "registry on r cannot process records of the log",
    ),
    "CarillonBackgroundFailure": Case(
        {'carillon_background_failures_total{instance="d"}': "0+0x5 1+0x30"},
        5,
        7,
        {"instance": "d"},
        "a background task of d ended by an unexpected error",
    ),
    "CarillonCallsRefused": Case(
        {
            'carillon_rpc_errors_total{instance="r",method="/R/Get",code="PERMISSION_DENIED"}': "0+1x20",
            'carillon_rpc_errors_total{instance="a",method="/protos.accounts.v1.AccountsService/CreateTeam",'
            'code="PERMISSION_DENIED"}': "0+1x20",
        },
        2,
        4,
        {"instance": "r", "method": "/R/Get"},
        "r refuses /R/Get: the caller's certificate may not call it, or its list of shards is wrong",
    ),
    "CarillonCallsFail": Case(
        {
            'carillon_rpc_errors_total{instance="r",method="/R/Get",code="INTERNAL"}': "0+60x30",
            'carillon_rpc_errors_total{instance="r",method="/R/Find",code="NOT_FOUND"}': "0+60x30",
        },
        9,
        12,
        {"instance": "r", "method": "/R/Get"},
        "r answers /R/Get with errors, 1 a second",
    ),
    "CarillonPushesHeldUp": Case(
        {"carillon_delivery_pushes_held_up": "5+0x5 6+0x10"}, 7, 8, {}, "6 pushes wait for targeting"
    ),
    "CarillonPushesFail": Case(
        {"carillon_delivery_pushes_failed_total": "0+0x5 2+0x20"},
        5,
        6,
        {},
        "pushes ended as failed before they started",
    ),
    "CarillonChannelStopped": Case(
        {
            'carillon_apns_apps_stopped{instance="d-0"}': "0+0x30",
            'carillon_channel_apps_stopped{channel="webpush",instance="d-0"}': "0+0x30",
            'carillon_channel_apps_stopped{channel="fcm",instance="d-0"}': "0+0x5 2+0x20",
            'carillon_channel_apps_stopped{channel="fcm",instance="d-1"}': "0+0x5 1+0x20",
        },
        10,
        11,
        {"channel": "fcm"},
        "messages of 3 apps do not leave by fcm: it does not accept their credentials",
    ),
    "CarillonChannelUnreachable": Case(
        {
            'carillon_channel_unreachable_services{instance="d-0",channel="apns"}': "0+0x30",
            'carillon_channel_unreachable_services{instance="d-0",channel="webpush"}': "0+0x5 1+0x20",
            'carillon_channel_unreachable_services{instance="d-1",channel="webpush"}': "0+0x5 2+0x20",
        },
        10,
        11,
        {"channel": "webpush"},
        "no connection leads to 3 push services of webpush",
    ),
    "CarillonApnsBadTokens": Case(
        {"carillon_apns_apps_with_bad_tokens": "0+0x5 1+0x20"},
        10,
        11,
        {},
        "Apple calls most tokens of 1 iOS apps bad: their environment is probably wrong",
    ),
    "CarillonWebhooksPaused": Case(
        {"carillon_webhooks_paused": "0+0x5 2+0x20"},
        5,
        6,
        {},
        "2 webhooks are paused: their receivers have failed for three days, or are gone",
    ),
    "CarillonWebhooksBehind": Case(
        {'carillon_webhook_age_seconds{instance="w"}': "600+0x5 1200+0x20"},
        15,
        16,
        {},
        "an event waits for the receiver of a webhook for 20m 0s",
    ),
    "CarillonDevicesGone": Case(
        {
            'carillon_gateway_connections{instance="g1"}': "1000+0x40",
            'carillon_gateway_connections{instance="g2"}': "1500+0x19 0+0x20",
        },
        21,
        22,
        {},
        "1000 devices are connected, fewer than half of those a quarter of an hour ago",
    ),
    "CarillonAliasesTaken": Case(
        {
            'carillon_registry_aliases_lost_total{instance="r",device="unproven"}': "0+1x30 30+0x60",
            'carillon_registry_aliases_lost_total{instance="r",device="proven"}': "0+0x40 0+1x60",
        },
        10,
        30,
        {},
        "30 devices lost their alias to others within half an hour",
    ),
    "CarillonProofsRefused": Case(
        {
            'carillon_identity_proofs_total{instance="g",result="proven"}': "0+90x90",
            'carillon_identity_proofs_total{instance="g",result="signature"}': "0+0x30 0+10x60",
        },
        30,
        60,
        {"result": "signature"},
        "290 proofs of devices were refused within half an hour: signature",
    ),
    "CarillonGatewayNearlyFull": Case(
        {
            'carillon_gateway_connections{instance="g"}': "800+0x5 950+0x20",
            'carillon_gateway_connections_max{instance="g"}': "1000+0x30",
        },
        10,
        11,
        {"instance": "g"},
        "g has 95% of the devices that it can have",
    ),
    "CarillonGatewayRefuses": Case(
        {
            'carillon_gateway_refused_total{instance="g",why="crowded"}': "0+120x30",
            'carillon_gateway_refused_total{instance="g",why="quota"}': "0+120x30",
        },
        5,
        12,
        {"instance": "g", "why": "crowded"},
        "g refuses 2 devices a second: crowded",
    ),
    "CarillonRegistrationsRefused": Case(
        {
            'carillon_quota_refusals_total{instance="g",appkey="1",quota="registrations_per_address"}': "0+120x30",
            'carillon_quota_refusals_total{instance="h",appkey="1",quota="registrations_per_address"}': "0+120x30",
            'carillon_quota_refusals_total{instance="g",appkey="2",quota="devices"}': "0+120x30",
        },
        5,
        12,
        {"appkey": "1", "quota": "registrations_per_address"},
        "4 new devices a second of app 1 are refused: registrations_per_address",
    ),
    "CarillonLogWentBack": Case(
        {'carillon_registry_lost_devices_total{instance="r"}': "0x10 2x100"},
        0,
        30,
        {},
        "2 devices hold keys of tokens that the log does not know: the log has gone back",
    ),
    "CarillonDevicesSilent": Case(
        {
            'carillon_registry_silent_share{instance="r",appkey="1"}': "0.02x10 0.25x90",
            'carillon_registry_silent_share{instance="s",appkey="2"}': "0.05x100",
        },
        60,
        75,
        {"appkey": "1"},
        "25% of the devices of app 1 have been silent for too long",
    ),
    "CarillonRetiredDevicesReturn": Case(
        {
            'carillon_registry_devices_retired_total{instance="r",appkey="1"}': "0+1x150",
            'carillon_registry_devices_returned_total{instance="r",appkey="1"}': "0x10 0+100x140",
            'carillon_registry_devices_retired_total{instance="r",appkey="2"}': "0+100x150",
            'carillon_registry_devices_returned_total{instance="r",appkey="2"}': "0+1x150",
        },
        60,
        90,
        {"appkey": "1"},
        "7900 devices of app 1 that were removed as silent came back within a week",
    ),
    "CarillonOpenFiles": Case(
        {f"process_open_fds{{{EDGE}}}": "95+0x30", f"process_max_fds{{{EDGE}}}": "100+0x30"},
        4,
        5,
        {"instance": "edge:8080", "job": "carillon"},
        "edge:8080 has 95% of its files open",
    ),
    "CarillonDiskFilling": Case(
        {
            'carillon_data_free_bytes{instance="k"}': "1000000-1000x400",
            'carillon_data_size_bytes{instance="k"}': "2100000+0x400",
        },
        29,
        60,
        {"instance": "k"},
        "the disk of k is full within a day at this rate",
    ),
    "CarillonDiskFull": Case(
        {
            'carillon_data_free_bytes{instance="k"}': "10+0x5 4+0x20",
            'carillon_data_size_bytes{instance="k"}': "100+0x30",
        },
        6,
        7,
        {"instance": "k"},
        "4% of the disk of k is free",
    ),
    "CarillonArchiveFails": Case(
        {'carillon_log_archive_failures_total{instance="up:8080"}': "0+0x9 1+0x59 2+0x150"},
        69,
        75,
        {"instance": "up:8080"},
        "up:8080 cannot move old records from the log into its archive, and the log grows",
    ),
    "CarillonStateCopyFails": Case(
        {'carillon_state_copy_failures_total{instance="d:8080"}': "0+0x9 1+0x59 2+0x150"},
        69,
        75,
        {"instance": "d:8080"},
        "d:8080 cannot copy its state to the archive",
    ),
    "CarillonCertificateExpires": Case(
        {'carillon_certificate_expires_seconds{instance="g",setting="CARILLON_TLS_CERT"}': "867600+0x90"},
        59,
        60,
        {"instance": "g", "setting": "CARILLON_TLS_CERT"},
        "the certificate of CARILLON_TLS_CERT on g expires in 10d 0h 0m 0s",
    ),
    "CarillonPausedForLong": Case(
        {"carillon_apps_paused": "3+0x1500"}, 1439, 1440, {}, "3 apps have been paused for a day"
    ),
    "CarillonPersonKeysNotCopied": Case(
        {'carillon_person_keys_uncopied{instance="r"}': "1+0x1500"},
        1439,
        1440,
        {},
        "the keys of persons were never copied: with a lost disk all tokens in the log would be lost",
    ),
}
