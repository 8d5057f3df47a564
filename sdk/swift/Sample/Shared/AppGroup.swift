#if canImport(UserNotifications)
import Carillon
import Foundation
import UserNotifications

/// The app group of the app and its extension, which both name in their Info.plist.
enum AppGroup {
    static var name: String? { Bundle.main.object(forInfoDictionaryKey: "CarillonAppGroup") as? String }

    /// Nil without the entitlement for the group.
    static var folder: URL? {
        name.flatMap { FileManager.default.containerURL(forSecurityApplicationGroupIdentifier: $0) }
    }
}
#endif
