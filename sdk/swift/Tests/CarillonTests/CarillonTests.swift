import Foundation
import XCTest

@testable import Carillon

final class EnvironmentTests: XCTestCase {
    private func profile(_ entitlements: String) -> Data {
        let list = """
            <?xml version="1.0" encoding="UTF-8"?>
            <plist version="1.0"><dict><key>Name</key><string>iOS Team</string><key>Entitlements</key>
            <dict>\(entitlements)</dict></dict></plist>
            """
        return Data([0x30, 0x82, 0, 0xFF]) + Data(list.utf8) + Data([0, 0xFE, 0x3C, 0x3F])
    }

    func testTheProfileNamesTheEnvironment() {
        let sandbox = profile("<key>aps-environment</key><string>development</string>")
        let production = profile("<key>aps-environment</key><string>production</string>")
        XCTAssertEqual(ApnsEnvironment(profile: sandbox), .sandbox)
        XCTAssertEqual(ApnsEnvironment(profile: production), .production)
    }

    func testWithoutAUsableProfileItIsProduction() {
        let damaged = Data("<?xml <plist> development".utf8)
        for each in [nil, Data(), damaged, Data("</plist><?xml".utf8), profile("")] as [Data?] {
            XCTAssertEqual(ApnsEnvironment(profile: each), .production)
        }
    }

    func testTheSandboxMayBeAnAppOfItsOwn() {
        let url = URL(string: "https://push.example.org/device/v1")!
        let one = CarillonConfig(url: url, appkey: "1")
        XCTAssertEqual([one.appkey(in: .production), one.appkey(in: .sandbox)], ["1", "1"])
        let two = CarillonConfig(url: url, appkey: "1", sandboxAppkey: "2")
        XCTAssertEqual([two.appkey(in: .production), two.appkey(in: .sandbox)], ["1", "2"])
    }
}

final class PushTests: XCTestCase {
    private func push(_ json: String) throws -> CarillonPush {
        let parsed = try JSONSerialization.jsonObject(with: Data(json.utf8))
        return CarillonPush(try XCTUnwrap(parsed as? [String: Any]))
    }

    func testAnAlertCarriesItsMessageId() throws {
        let alert = try push(#"{"aps": {"alert": "a", "mutable-content": 1}, "extra": "e", "carillon": {"msgid": 274931594035200}}"#)
        XCTAssertEqual(alert.msgid, 274_931_594_035_200)
        XCTAssertEqual(alert.extra, "e")
        XCTAssertNil(alert.content)
        XCTAssertNil(alert.code)
    }

    func testASilentPushCarriesContentOrACode() throws {
        XCTAssertEqual(try push(#"{"aps": {"content-available": 1}, "content": "text"}"#).content, "text")
        XCTAssertEqual(try push(#"{"aps": {}, "content": {"a": 1}}"#).content, #"{"a":1}"#)
        XCTAssertEqual(try push(#"{"aps": {}, "carillon": {"code": "c"}}"#).code, "c")
    }

    func testPushesOfOthersAreNothing() throws {
        for json in ["{}", #"{"carillon": 1}"#, #"{"carillon": {"msgid": "1"}, "content": 5, "extra": []}"#] {
            let other = try push(json)
            XCTAssertNil(other.msgid)
            XCTAssertNil(other.content)
            XCTAssertNil(other.extra)
        }
    }
}

final class WaitingReportsTests: XCTestCase {
    private let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)

    override func tearDown() { try? FileManager.default.removeItem(at: folder) }

    private func taken(_ waiting: WaitingReports, _ types: Set<String> = CarillonReports.all) -> [Int] {
        var found: [Int] = []
        while let (name, frame) = waiting.oldest(of: types) {
            found.append(frame["msgid"] as? Int ?? -1)
            waiting.remove(name)
        }
        return found
    }

    func testReportsAreTakenInTheirOrderAlsoByAnotherProcess() throws {
        let waiting = WaitingReports(folder)
        XCTAssertNil(waiting.oldest(of: CarillonReports.all))
        try waiting.put([report("shown", 1), report("clicked", 2)])
        try waiting.put([report("shown", 3)])
        XCTAssertEqual(taken(WaitingReports(folder)), [1, 2, 3])
    }

    func testTheLast200AreKept() throws {
        let waiting = WaitingReports(folder)
        for number in 1...205 { try waiting.put([report("shown", number)]) }
        XCTAssertEqual(taken(waiting), Array(6...205))
    }

    func testAnExtensionLeavesTheUseOfTheAppToTheApp() throws {
        let waiting = WaitingReports(folder)
        try waiting.put([["type": "activity", "event": "open"], report("shown", 7)])
        XCTAssertEqual(taken(waiting, ["ack", "report"]), [7])
        XCTAssertEqual(waiting.oldest(of: CarillonReports.all)?.frame["event"] as? String, "open")
    }

    func testADamagedReportIsDeleted() throws {
        let waiting = WaitingReports(folder)
        try waiting.put([report("shown", 1)])
        try Data("{".utf8).write(to: folder.appendingPathComponent("000000000000-a.json"))
        XCTAssertEqual(taken(waiting), [1])
        XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: folder.path), [])
    }
}

/// A service and a Keychain that fail as the test orders; time stands still.
final class FaultsTests: XCTestCase {
    private final class Service: CarillonTransport {
        var bodies: [[String: Any]] = []

        func post(_ body: Data, to url: URL, _ completion: @escaping (Result<CarillonHttpAnswer, Error>) -> Void) -> () -> Void {
            bodies.append((try? JSONSerialization.jsonObject(with: body)) as? [String: Any] ?? [:])
            let welcome = Data(#"{"type": "welcome", "token": "0a", "key": "secret", "heartbeat": 1, "new": true}"#.utf8)
            completion(.success(CarillonHttpAnswer(status: 200, retryAfterS: nil, body: welcome)))
            return {}
        }
    }

    private final class Locked: CarillonStore {
        struct LockedError: Error {}
        var data: Data?
        var isReadable = true
        var isWritable = true

        func load() throws -> Data? {
            if !isReadable { throw LockedError() }
            return data
        }

        func save(_ data: Data) throws {
            if !isWritable { throw LockedError() }
            self.data = data
        }
    }

    private let service = Service()
    private let store = Locked()
    private var events: [CarillonEvent] = []
    private let callbacks = DispatchQueue(label: "test")

    private func told(_ count: Int, of start: (CarillonDevice) -> Void) -> [CarillonEvent] {
        let heard = expectation(description: "events")
        heard.expectedFulfillmentCount = count
        let config = CarillonConfig(url: URL(string: "https://push.example.org/device/v1")!, appkey: "1")
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        let device = CarillonDevice(
            config, store: store, folder: folder, transport: service, schedule: { _, _ in {} }, callbacks: callbacks,
            random: { 0.5 }
        ) {
            self.events.append($0)
            heard.fulfill()
        }
        XCTAssertTrue(service.bodies.isEmpty)
        start(device)
        wait(for: [heard], timeout: 60)
        return callbacks.sync { events }
    }

    func testAnIdentityInALaterFormIsKeptAndSaysNoHello() {
        for version in ["2", "null", #""2""#] {
            let later = Data(#"{"version": \#(version), "appkey": "1", "token": "0aff", "key": "secret"}"#.utf8)
            store.data = later
            events = []
            let failed = CarillonEvent.storeFailed("the identity was saved by a later version of the SDK")
            XCTAssertEqual(told(2) { $0.setDeviceToken(Data([0x0A, 0xFF])) }.first, failed)
            XCTAssertEqual(store.data, later)
            XCTAssertTrue(service.bodies.isEmpty)
        }
        store.data = Data(#"{"version": 1, "appkey": "1", "token": "0aff", "key": "secret", "more": 1}"#.utf8)
        events = []
        XCTAssertEqual(told(1) { $0.setDeviceToken(Data([0x0A, 0xFF])) }.count, 1)
        XCTAssertEqual(service.bodies.first?["key"] as? String, "secret")
    }

    func testATokenIsSentInHexadecimalDigits() {
        XCTAssertEqual(told(1) { $0.setDeviceToken(Data([0x0A, 0xFF])) }, [.registered(isNew: true, ignored: [])])
        XCTAssertEqual(service.bodies.first?["token"] as? String, "0aff")
        let attributes = service.bodies.first?["device"] as? [String: String] ?? [:]
        XCTAssertEqual(attributes["brand"], "Apple")
        XCTAssertNotEqual(attributes["model"], "")
        XCTAssertNotNil(attributes["os_version"])
    }

    func testALockedKeychainIsNoLostIdentity() {
        store.isReadable = false
        let seen = told(2) { $0.setDeviceToken(Data([0x0A])) }
        guard case .storeFailed = seen[0], case .retries(1000, _) = seen[1] else { return XCTFail("\(seen)") }
        XCTAssertTrue(service.bodies.isEmpty, "a hello without the key would ask for a code")
    }

    func testAnIdentityThatCannotBeSavedIsAskedForAgain() {
        store.isWritable = false
        let seen = told(2) { $0.setDeviceToken(Data([0x0A])) }
        guard case .storeFailed = seen[0], case .retries(1000, _) = seen[1] else { return XCTFail("\(seen)") }
        XCTAssertNil(store.data)
    }
}
