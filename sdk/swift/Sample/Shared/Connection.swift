import Carillon
import Foundation

/// The service and its app that a link names, such as
/// `carillon://connect?url=https%3A%2F%2Fpush.example.org%2Fdevice%2Fv1&appkey=1234567890`.
///
/// The app stores it in the folder of the app group, where the notification service extension finds it.
struct Connection: Codable, Equatable {
    private static let file = "connection.json"

    /// The address of `POST /device/v1`.
    let url: URL
    let appkey: String

    /// Reads a link; nil for one without an appkey or an http address, as that of a connection by WebSocket is.
    init?(link: URL) {
        guard let parts = URLComponents(url: link, resolvingAgainstBaseURL: false),
            parts.scheme?.lowercased() == "carillon", parts.host?.lowercased() == "connect"
        else { return nil }
        let values = Dictionary(
            (parts.queryItems ?? []).map { ($0.name, $0.value ?? "") }, uniquingKeysWith: { first, _ in first })
        guard let appkey = values["appkey"], !appkey.isEmpty, let text = values["url"], let url = URL(string: text),
            ["http", "https"].contains(url.scheme?.lowercased()), url.host?.isEmpty == false
        else { return nil }
        self.url = url
        self.appkey = appkey
    }

    /// Returns what was saved last in a folder; nil if nothing was, or if there is no folder.
    static func load(from folder: URL?) -> Connection? {
        let data = folder.flatMap { try? Data(contentsOf: $0.appendingPathComponent(file)) }
        return data.flatMap { try? JSONDecoder().decode(Connection.self, from: $0) }
    }

    func save(in folder: URL) throws {
        try JSONEncoder().encode(self).write(to: folder.appendingPathComponent(Connection.file), options: .atomic)
    }

    func config(appGroup: String?) -> CarillonConfig {
        CarillonConfig(url: url, appkey: appkey, appGroup: appGroup)
    }
}
