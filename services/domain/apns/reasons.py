"""Apple's documented refusals of a push: (HTTP status, reason).

Source: "Handling notification responses from APNs" in Apple's developer documentation.
"""

APPLE_REASONS: frozenset[tuple[int, str]] = frozenset(
    (
        (400, "BadCollapseId"),
        (400, "BadDeviceToken"),
        (400, "BadExpirationDate"),
        (400, "BadMessageId"),
        (400, "BadPriority"),
        (400, "BadTopic"),
        (400, "DeviceTokenNotForTopic"),
        (400, "DuplicateHeaders"),
        (400, "IdleTimeout"),
        (400, "InvalidPushType"),
        (400, "MissingDeviceToken"),
        (400, "MissingTopic"),
        (400, "PayloadEmpty"),
        (400, "TopicDisallowed"),
        (403, "BadCertificate"),
        (403, "BadCertificateEnvironment"),
        (403, "BadEnvironmentKeyIdInToken"),
        (403, "BadEnvironmentKeyInToken"),
        (403, "ExpiredProviderToken"),
        (403, "Forbidden"),
        (403, "InvalidProviderToken"),
        (403, "MissingProviderToken"),
        (403, "UnrelatedKeyIdInToken"),
        (404, "BadPath"),
        (405, "MethodNotAllowed"),
        (410, "ExpiredToken"),
        (410, "Unregistered"),
        (413, "PayloadTooLarge"),
        (429, "TooManyProviderTokenUpdates"),
        (429, "TooManyRequests"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailable"),
        (503, "Shutdown"),
    )
)
