import Foundation

typealias Frame = [String: Any]

/// Why a request has failed.
public enum CarillonError: Error, Equatable, CustomStringConvertible {
    /// The service has refused it. The codes are those of docs/devices.md.
    case refused(code: Int, description: String)

    /// No answer came, or there is no identity to ask with: repeat it after the next `registered`.
    case unavailable(String)

    /// No answer came in time. The request may have been carried out.
    case deadline

    public var description: String {
        switch self {
        case .refused(let code, let description): return "refused with \(code): \(description)"
        case .unavailable(let reason): return reason
        case .deadline: return "no answer in time"
        }
    }
}

extension CarillonError: LocalizedError {
    public var errorDescription: String? { description }
}

/// What happens to a device.
public enum CarillonEvent: Equatable {
    /// The service knows the device. If it `isNew`, set its alias and tags. `ignored`: attributes that were not stored.
    case registered(isNew: Bool, ignored: [String])

    /// The token is registered, and this phone has no key of it. A silent push brings a code that opens it.
    case awaitsCode

    /// The service refuses the device, until the app starts again. `reason`: "revoked", or nil.
    case refused(code: Int, description: String, reason: String?)

    /// The device says hello again after this time.
    case retries(afterMs: Int, because: String)

    /// The Keychain, or another store, could not be read or written: before the phone is unlocked first, it cannot.
    case storeFailed(String)
}

/// The service's record of a device.
public struct CarillonKnownDevice: Equatable {
    public let alias: String?
    public let tags: [Int]
    public let stags: [String]

    /// The attributes that the device reported.
    public let attributes: [String: String]

    init(_ answer: Answer) {
        alias = answer.frame["alias"] as? String
        tags = answer.frame["tags"] as? [Int] ?? []
        stags = answer.frame["stags"] as? [String] ?? []
        attributes = answer.frame["device"] as? [String: String] ?? [:]
    }
}

/// What Carillon has put into a push, from the `userInfo` of a notification.
public struct CarillonPush: Equatable {
    /// The message id, which pushes carry whose app asks for reports (`carillon app set K --apns-reports on`).
    public let msgid: Int?

    /// The content of a push for the app itself, which shows nothing. Content that is an object is JSON here.
    public let content: String?

    /// Free text of the app server.
    public let extra: String?

    /// Opens a device whose key was lost.
    let code: String?

    public init(_ userInfo: [AnyHashable: Any]) {
        let own = userInfo["carillon"] as? [String: Any]
        msgid = own?["msgid"].flatMap(wholeNumber)
        code = own?["code"] as? String
        extra = userInfo["extra"] as? String
        if let object = userInfo["content"] as? [String: Any] {
            content = (try? JSONSerialization.data(withJSONObject: object)).map { String(decoding: $0, as: UTF8.self) }
        } else {
            content = userInfo["content"] as? String
        }
    }
}

/// The answer to a frame. `frame` has a type.
struct Answer {
    let frame: Frame
    let retryAfterS: Double?

    /// CarillonError: the body is no frame, as that of a proxy's error.
    init(_ answered: CarillonHttpAnswer) throws {
        guard let frame = (try? JSONSerialization.jsonObject(with: answered.body)) as? Frame, frame["type"] is String
        else { throw CarillonError.unavailable("HTTP \(answered.status), and no frame") }
        self.frame = frame
        retryAfterS = answered.retryAfterS
    }

    var isError: Bool { type == "error" }
    var type: String { frame["type"] as? String ?? "" }
    var code: Int { frame["code"] as? Int ?? 500 }
    var description: String { frame["desc"] as? String ?? "" }
    var reason: String? { frame["reason"] as? String }

    /// Whether it refuses the device's key, which may be lost, revoked or of before the last code.
    var refusesKey: Bool { isError && code == 401 && !description.hasPrefix("proof:") }

    /// Whether the device was removed: it comes back by a hello.
    var missesDevice: Bool { isError && code == 400 && description == "input error: no such device" }
}

/// The identity that the service gave to a device. `key` is secret; without one the device has to prove its token.
struct Identity: Codable, Equatable {
    var appkey: String
    var token: String
    var key: String?

    /// Form of what is stored, which an identity without a `version` has; a later form has a greater one.
    private static let version = 1

    /// Returns the stored identity; nil for none, or for what is none. CarillonError: a later version of the SDK has stored
    /// it, in a form that this one cannot read.
    static func stored(in store: CarillonStore) throws -> Identity? {
        guard let data = try store.load() else { return nil }
        let saved = (try? JSONSerialization.jsonObject(with: data)) as? Frame
        if let version = saved?["version"], version as? Int != Identity.version {
            throw CarillonError.unavailable("the identity was saved by a later version of the SDK")
        }
        return try? JSONDecoder().decode(Identity.self, from: data)
    }

    /// The fields that every frame has; nil without a key.
    var fields: Frame? { key.map { ["appkey": appkey, "token": token, "key": $0] } }
}

private func wholeNumber(_ value: Any) -> Int? {
    if let number = value as? Int { return number }
    return (value as? NSNumber)?.intValue
}
