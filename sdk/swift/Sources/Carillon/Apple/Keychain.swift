#if canImport(Security)
import Foundation
import Security

/// Keeps the identity in the Keychain of this phone alone: in no backup, and readable after the first unlock.
public final class CarillonKeychain: CarillonStore {
    private let item: [String: Any]

    /// `appGroup`: the app group whose members share the identity.
    public init(appkey: String, appGroup: String?) {
        var item: [String: Any] = [
            kSecClass as String: kSecClassGenericPassword,
            kSecAttrService as String: "dev.carillon.device",
            kSecAttrAccount as String: appkey,
        ]
        item[kSecAttrAccessGroup as String] = appGroup
        self.item = item
    }

    public func load() throws -> Data? {
        var found: CFTypeRef?
        let query = item.merging([kSecReturnData as String: true]) { own, _ in own }
        let status = SecItemCopyMatching(query as CFDictionary, &found)
        if status == errSecItemNotFound { return nil }
        guard status == errSecSuccess, let data = found as? Data else { throw KeychainError(status: status) }
        return data
    }

    public func save(_ data: Data) throws {
        let values: [String: Any] = [
            kSecValueData as String: data,
            kSecAttrAccessible as String: kSecAttrAccessibleAfterFirstUnlockThisDeviceOnly,
        ]
        var status = SecItemUpdate(item as CFDictionary, values as CFDictionary)
        if status == errSecItemNotFound { status = SecItemAdd(item.merging(values) { own, _ in own } as CFDictionary, nil) }
        if status != errSecSuccess { throw KeychainError(status: status) }
    }
}

struct KeychainError: LocalizedError {
    let status: OSStatus
    var errorDescription: String? { "the Keychain answered \(status)" }
}

extension CarillonConfig {
    var keychain: CarillonKeychain { CarillonKeychain(appkey: appkey, appGroup: appGroup) }

    /// The folder of waiting reports: of the app group, else of this app or extension alone.
    var folder: URL {
        let files = FileManager.default
        let shared = appGroup.flatMap { files.containerURL(forSecurityApplicationGroupIdentifier: $0) }
        let own = files.urls(for: .applicationSupportDirectory, in: .userDomainMask)[0]
        return (shared ?? own).appendingPathComponent("Carillon/\(appkey)", isDirectory: true)
    }
}

extension CarillonDevice {
    /// The device of an app: with its identity in the Keychain, and its reports in the folder of the app group.
    public convenience init(_ config: CarillonConfig, onEvent: @escaping (CarillonEvent) -> Void) {
        self.init(config, store: config.keychain, folder: config.folder, onEvent: onEvent)
    }
}

extension CarillonReports {
    /// The reports of a notification service extension.
    public convenience init(_ config: CarillonConfig) {
        self.init(config, store: config.keychain, folder: config.folder)
    }
}
#endif
