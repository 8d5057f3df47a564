import Foundation
import XCTest

@testable import SampleShared

final class ConnectionTests: XCTestCase {
    private let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)

    override func setUpWithError() throws {
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    }

    override func tearDown() { try? FileManager.default.removeItem(at: folder) }

    private func connection(_ link: String) -> Connection? { URL(string: link).flatMap(Connection.init(link:)) }

    func testALinkNamesTheServiceAndTheApp() {
        let link = "carillon://connect?url=https%3A%2F%2Fpush.example.org%3A8300%2Fdevice%2Fv1&appkey=1234567890"
        let config = connection(link)?.config(appGroup: "group.org.example.app")
        XCTAssertEqual(config?.url.absoluteString, "https://push.example.org:8300/device/v1")
        XCTAssertEqual(config?.appkey, "1234567890")
        XCTAssertEqual(config?.appGroup, "group.org.example.app")
        XCTAssertEqual(connection("CARILLON://CONNECT?appkey=1&url=http://192.168.1.2:8300/device/v1")?.appkey, "1")
    }

    func testWhatIsNoneIsRefused() {
        for link in [
            "carillon://connect?appkey=1", "carillon://connect?url=https://push.example.org/", "carillon://connect",
            "carillon://connect?url=https://push.example.org/&appkey=", "carillon://other?url=https://a.example/&appkey=1",
            "https://connect?url=https://push.example.org/&appkey=1", "carillon://connect?url=https://&appkey=1",
            "carillon://connect?url=wss://push.example.org/device/v1&appkey=1", "carillon://connect?url=file:///x&appkey=1",
        ] {
            XCTAssertNil(connection(link), link)
        }
    }

    func testTheExtensionFindsWhatTheAppHasSaved() throws {
        XCTAssertNil(Connection.load(from: nil))
        XCTAssertNil(Connection.load(from: folder))
        let saved = try XCTUnwrap(connection("carillon://connect?url=https://push.example.org/&appkey=1"))
        try saved.save(in: folder)
        XCTAssertEqual(Connection.load(from: folder), saved)
        try Data("{".utf8).write(to: folder.appendingPathComponent("connection.json"))
        XCTAssertNil(Connection.load(from: folder))
    }
}
