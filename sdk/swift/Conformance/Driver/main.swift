// Runs one device for the conformance tests: reads a command a line, and prints an event a line, both as JSON.

import Carillon
import Foundation

/// Waits that end when the test orders it, or when the clock that it moves is past their end.
final class ManualTimers {
    private struct Wait {
        let id: Int
        let ms: Double
        let endMs: Double
        let work: () -> Void
    }

    private let lock = NSLock()
    private var nowMs = 0.0
    private var lastId = 0
    private var pending: [Wait] = []
    private var elapsed: [Double] = []

    func schedule(_ afterMs: Double, _ work: @escaping () -> Void) -> () -> Void {
        let ms = afterMs.rounded()
        lock.lock()
        if let index = elapsed.firstIndex(of: ms) {
            elapsed.remove(at: index)
            lock.unlock()
            work()
            return {}
        }
        lastId += 1
        let id = lastId
        pending.append(Wait(id: id, ms: ms, endMs: nowMs + ms, work: work))
        lock.unlock()
        return {
            self.lock.lock()
            self.pending.removeAll { $0.id == id }
            self.lock.unlock()
        }
    }

    func elapse(_ ms: Double) {
        lock.lock()
        let index = pending.firstIndex { $0.ms == ms }
        let wait = index.map { pending.remove(at: $0) }
        if wait == nil { elapsed.append(ms) }
        lock.unlock()
        wait?.work()
    }

    func move(_ ms: Double) {
        lock.lock()
        nowMs += ms
        let over = pending.filter { $0.endMs <= nowMs }
        pending.removeAll { $0.endMs <= nowMs }
        lock.unlock()
        over.forEach { $0.work() }
    }
}

/// The Keychain of the tests: a file.
final class FileStore: CarillonStore {
    private let file: URL

    init(_ path: String) { file = URL(fileURLWithPath: path) }

    func load() throws -> Data? {
        try FileManager.default.fileExists(atPath: file.path) ? Data(contentsOf: file) : nil
    }

    func save(_ data: Data) throws { try data.write(to: file, options: .atomic) }
}

final class Driver {
    private let timers = ManualTimers()
    private let lock = NSLock()
    private var device: CarillonDevice!
    private var reports: CarillonReports!

    func run() {
        while let line = readLine() {
            guard let command = (try? JSONSerialization.jsonObject(with: Data(line.utf8))) as? [String: Any] else { continue }
            let ms = (command["ms"] as? Double ?? Double(command["ms"] as? Int ?? 0)).rounded()
            switch command["do"] as? String {
            case "start": start(command)
            case "elapse": timers.elapse(ms)
            case "move":
                timers.move(ms)
                emit("moved", true)
            case "token": setToken(command["token"] as? String ?? "")
            case "notification":
                let payload = command["payload"] as? [AnyHashable: Any] ?? userInfo(["msgid": command["msgid"] ?? 0])
                notification(command["event"] as? String ?? "", payload)
            case "read":
                let push = CarillonPush(command["payload"] as? [AnyHashable: Any] ?? [:])
                emit("returned", [
                    "msgid": push.msgid ?? NSNull(), "content": push.content ?? NSNull(), "extra": push.extra ?? NSNull(),
                ] as [String: Any])
            case "code": notification("code", userInfo(["code": command["code"] ?? ""]))
            case "call": call(command["method"] as? String ?? "", command["arguments"] as? [Any] ?? [])
            case "close":
                emit("closed", true)
                return
            default: fatalError("an unknown command: \(line)")
            }
        }
    }

    private func start(_ command: [String: Any]) {
        guard let url = (command["url"] as? String).flatMap(URL.init), let state = command["state"] as? String else {
            fatalError("start without url and state")
        }
        let config = CarillonConfig(
            url: url, appkey: command["appkey"] as? String ?? "1000000001", sandboxAppkey: "1000000002",
            attributes: command["attributes"] as? [String: String] ?? [:])
        let store = FileStore(state)
        let folder = URL(fileURLWithPath: state + ".reports")
        let callbacks = DispatchQueue(label: "driver")
        let chance = command["chance"] as? Double ?? 0.5
        let isSandbox = command["sandbox"] as? Bool ?? false
        device = CarillonDevice(
            config, store: store, folder: folder, environment: isSandbox ? .sandbox : .production,
            schedule: timers.schedule, callbacks: callbacks, random: { chance }, onEvent: { self.emit("event", frame($0)) })
        reports = CarillonReports(config, store: store, folder: folder, schedule: timers.schedule)
        if let token = command["token"] as? String { setToken(token) }
    }

    private func setToken(_ digits: String) {
        var rest = Substring(digits)
        var bytes = Data()
        while let byte = UInt8(rest.prefix(2), radix: 16) {
            bytes.append(byte)
            rest = rest.dropFirst(2)
        }
        device.setDeviceToken(bytes)
    }

    private func userInfo(_ own: [String: Any]) -> [AnyHashable: Any] { ["aps": ["alert": "text"], "carillon": own] }

    private func notification(_ event: String, _ userInfo: [AnyHashable: Any]) {
        switch event {
        case "shown": reports.shown(userInfo) { self.emit("returned", NSNull()) }
        case "clicked": device.clicked(userInfo) { self.emit("returned", NSNull()) }
        case "dismissed": device.dismissed(userInfo) { self.emit("returned", NSNull()) }
        default: device.received(userInfo) { _ in self.emit("returned", NSNull()) }
        }
    }

    private func call(_ method: String, _ arguments: [Any]) {
        let texts = arguments.first as? [String] ?? []
        let numbers = arguments.first as? [Int] ?? []
        let text = arguments.first as? String ?? ""
        let proof = self.proof(arguments.last)
        switch method {
        case "set_alias": device.setAlias(text, proof: proof, completion: answered)
        case "clear_alias": device.clearAlias(completion: answered)
        case "add_tags": device.addTags(numbers, proof: proof, completion: answered)
        case "remove_tags": device.removeTags(numbers, completion: answered)
        case "add_stags": device.addStags(texts, proof: proof, completion: answered)
        case "remove_stags": device.removeStags(texts, completion: answered)
        case "set_attributes": device.setAttributes(arguments.first as? [String: String] ?? [:], completion: answered)
        case "get_device":
            device.getDevice { result in
                switch result {
                case .success(let known): self.emit("returned", fields(known))
                case .failure(let error): self.failed(error)
                }
            }
        case "activity":
            device.activity(CarillonDevice.Activity(rawValue: text)!) { self.emit("returned", NSNull()) }
        default: fatalError("an unknown method: \(method)")
        }
    }

    private func proof(_ options: Any?) -> CarillonProof? {
        let given = (options as? [String: Any])?["proof"]
        if let text = given as? String { return .text(text) }
        guard var left = given as? [String] else { return nil }
        return .fetched { take in take(.success(left.removeFirst())) }
    }

    private func answered(_ result: Result<Void, CarillonError>) {
        switch result {
        case .success: emit("returned", NSNull())
        case .failure(let error): failed(error)
        }
    }

    private func failed(_ error: CarillonError) {
        switch error {
        case .refused(let code, _): emit("raised", ["refused", code] as [Any])
        case .unavailable: emit("raised", ["unavailable", NSNull()] as [Any])
        case .deadline: emit("raised", ["deadline", NSNull()] as [Any])
        }
    }

    private func emit(_ name: String, _ value: Any) {
        guard var data = try? JSONSerialization.data(withJSONObject: [name: value]) else { fatalError("no JSON: \(value)") }
        data.append(10)
        lock.lock()
        FileHandle.standardOutput.write(data)
        lock.unlock()
    }
}

func frame(_ event: CarillonEvent) -> [String: Any] {
    switch event {
    case .registered(let isNew, let ignored): return ["type": "welcome", "new": isNew, "ignored": ignored]
    case .awaitsCode: return ["type": "awaits_code"]
    case .refused(let code, _, let reason): return ["type": "refused", "code": code, "reason": reason ?? NSNull()]
    case .retries(let afterMs, let why): return ["type": "disconnected", "reason": why, "retry_ms": afterMs]
    case .storeFailed: return ["type": "store_failed"]
    }
}

func fields(_ known: CarillonKnownDevice) -> [String: Any] {
    [
        "alias": known.alias ?? NSNull(), "tags": known.tags, "stags": known.stags, "device": known.attributes,
    ]
}

Driver().run()
