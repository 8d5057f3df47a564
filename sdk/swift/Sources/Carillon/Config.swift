import Foundation

/// What an app says of itself and of its service; the app and its notification service extension make the same one.
public struct CarillonConfig {
    /// The address of `POST /device/v1`, by https: frames carry the device's key.
    public let url: URL

    /// The app at the service.
    public let appkey: String

    /// The app at the service for builds with tokens of Apple's sandbox, if it is another one.
    public let sandboxAppkey: String?

    /// The app group that the app shares with its extension, such as `group.org.example.app`. It shares the device's
    /// identity, in the Keychain, and the reports that wait. Without it the extension can report nothing.
    public let appGroup: String?

    /// Any of region, carrier, channel, sdk_version, brand, model, resolution, os_version and app_version. Brand, model
    /// and the versions are those of the phone and the app where they are missing.
    public let attributes: [String: String]

    public init(
        url: URL, appkey: String, sandboxAppkey: String? = nil, appGroup: String? = nil, attributes: [String: String] = [:]
    ) {
        self.url = url
        self.appkey = appkey
        self.sandboxAppkey = sandboxAppkey
        self.appGroup = appGroup
        self.attributes = attributes
    }

    func appkey(in environment: ApnsEnvironment) -> String {
        environment == .sandbox ? sandboxAppkey ?? appkey : appkey
    }
}

/// The service of Apple's that knows a build's device tokens: a token of one is bad for the other.
public enum ApnsEnvironment: String {
    case production, sandbox

    /// That of this build, from its provisioning profile. Builds of the App Store have none, and are of production.
    public static var ofThisBuild: ApnsEnvironment {
        #if targetEnvironment(simulator)
        return .sandbox
        #else
        let profile = Bundle.main.url(forResource: "embedded", withExtension: "mobileprovision")
        return ApnsEnvironment(profile: profile.flatMap { try? Data(contentsOf: $0) })
        #endif
    }

    /// Reads the environment from the property list within a signed profile; production where there is none.
    init(profile: Data?) {
        self = .production
        guard let profile = profile,
            let start = profile.range(of: Data("<?xml".utf8)),
            let end = profile.range(of: Data("</plist>".utf8), in: start.lowerBound..<profile.endIndex),
            let values = try? PropertyListSerialization.propertyList(
                from: profile.subdata(in: start.lowerBound..<end.upperBound), format: nil) as? [String: Any],
            let entitlements = values["Entitlements"] as? [String: Any]
        else { return }
        if entitlements["aps-environment"] as? String == "development" { self = .sandbox }
    }
}

private let sdkVersion = "swift-0.1.0"

/// The attributes of this phone and app. No identifier of the phone is among them.
func attributesOfThisPhone() -> [String: String] {
    var system = utsname()
    uname(&system)
    let model = withUnsafeBytes(of: &system.machine) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
    let version = ProcessInfo.processInfo.operatingSystemVersion
    var found = [
        "brand": "Apple", "model": model, "sdk_version": sdkVersion,
        "os_version": "\(version.majorVersion).\(version.minorVersion).\(version.patchVersion)",
    ]
    found["app_version"] = Bundle.main.infoDictionary?["CFBundleShortVersionString"] as? String
    return found
}
