import Foundation

/// Keeps the identity of a device, a few hundred bytes with a secret in it. On iPhones it is the Keychain.
public protocol CarillonStore: AnyObject {
    /// Returns what was saved last; nil if nothing was. An error says that it cannot be read now.
    func load() throws -> Data?

    func save(_ data: Data) throws
}

/// Reports that wait for the service, a file each, oldest first. An app and its extension use the same folder.
final class WaitingReports {
    static let most = 200

    private let folder: URL

    init(_ folder: URL) {
        self.folder = folder
    }

    func put(_ frames: [Frame]) throws {
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        var number = names().last.flatMap { Int($0.prefix(12)) } ?? 0
        for frame in frames {
            number += 1
            let digits = String(number)
            let name = String(repeating: "0", count: max(0, 12 - digits.count)) + digits + "-\(UUID().uuidString).json"
            let data = try JSONSerialization.data(withJSONObject: frame)
            try data.write(to: folder.appendingPathComponent(name), options: .atomic)
        }
        names().dropLast(WaitingReports.most).forEach(remove)
    }

    /// Returns the oldest report whose frame has one of these types, with its name. What is damaged is deleted.
    func oldest(of types: Set<String>) -> (name: String, frame: Frame)? {
        for name in names() {
            guard let data = try? Data(contentsOf: folder.appendingPathComponent(name)) else { continue }
            guard let frame = (try? JSONSerialization.jsonObject(with: data)) as? Frame, let type = frame["type"] as? String
            else {
                remove(name)
                continue
            }
            if types.contains(type) { return (name, frame) }
        }
        return nil
    }

    func remove(_ name: String) {
        try? FileManager.default.removeItem(at: folder.appendingPathComponent(name))
    }

    private func names() -> [String] {
        let all = (try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? []
        return all.filter { $0.hasSuffix(".json") && !$0.hasPrefix(".") }.sorted()
    }
}
