import Carillon
import Foundation
import UIKit
import UserNotifications

/// What becomes of pushes and events: one object for the app, while JavaScript may start later or anew. The app's
/// delegates forward to it what iOS tells, also before JavaScript has started.
@MainActor
@objc(CarillonReact)
public final class CarillonReact: NSObject {
    @objc public static let shared = CarillonReact()

    private static let mostWaiting = 200

    /// iOS gives the app 30 s for a push in the background.
    private static let handlingS = 25.0

    private var device: CarillonDevice?
    private var asked: NSDictionary?
    private var token: Data?
    private var beforeStart: [(CarillonDevice) -> Void] = []
    private var listener: ((String) -> Void)?
    private var waiting: [String] = []
    private var lastEvent: String?
    private var handling: [Int: () -> Void] = [:]
    private var lastId = 0

    // MARK: What the app forwards

    /// Of `application(_:didRegisterForRemoteNotificationsWithDeviceToken:)`.
    public func register(_ token: Data) {
        self.token = token
        device?.setDeviceToken(token)
    }

    /// Of `application(_:didReceiveRemoteNotification:fetchCompletionHandler:)`.
    public func receive(_ userInfo: [AnyHashable: Any], _ completion: @escaping (UIBackgroundFetchResult) -> Void) {
        let both = DispatchGroup()
        if let device = device {
            both.enter()
            device.received(userInfo) { _ in both.leave() }
        } else {
            keep { device in device.received(userInfo) }
        }
        if let content = CarillonPush(userInfo).content {
            both.enter()
            lastId += 1
            let id = lastId
            handling[id] = { both.leave() }
            var push = fields(of: userInfo)
            push["content"] = content
            tell(["type": "push", "id": id, "push": push], waits: true)
            DispatchQueue.main.asyncAfter(deadline: .now() + CarillonReact.handlingS) { self.handled(id, error: nil) }
        }
        both.notify(queue: .main) { completion(.newData) }
    }

    /// Of `userNotificationCenter(_:willPresent:withCompletionHandler:)`.
    public func present(_ notification: UNNotification) {
        tell(["type": "notification", "push": shown(notification)], waits: false)
    }

    /// Of `userNotificationCenter(_:didReceive:withCompletionHandler:)`.
    public func respond(_ response: UNNotificationResponse, _ completion: @escaping () -> Void) {
        if response.actionIdentifier != UNNotificationDismissActionIdentifier {
            tell(["type": "click", "push": shown(response.notification)], waits: true)
        }
        guard let device = device else {
            keep { device in device.received(response) }
            return completion()
        }
        device.received(response, completion: completion)
    }

    // MARK: What RCTCarillon.mm calls

    /// Returns why it could not start, or nil.
    @objc public func start(_ url: String, appkey: String, options: [String: Any]) -> String? {
        guard let address = URL(string: url), address.scheme == "https" || address.scheme == "http"
        else { return "\(url) is no URL of POST /device/v1" }
        let asked = ["url": url, "appkey": appkey, "options": options] as NSDictionary
        if device != nil && asked == self.asked { return nil }
        self.asked = asked
        let config = CarillonConfig(
            url: address, appkey: appkey, sandboxAppkey: options["sandboxAppkey"] as? String,
            appGroup: options["appGroup"] as? String, attributes: options["attributes"] as? [String: String] ?? [:])
        let device = CarillonDevice(config) { [weak self] event in self?.take(event) }
        self.device = device
        if let token = token { device.setDeviceToken(token) }
        beforeStart.forEach { $0(device) }
        beforeStart = []
        UIApplication.shared.registerForRemoteNotifications()
        return nil
    }

    /// The device stays registered; this app sends and tells nothing more.
    @objc public func stop() {
        device = nil
        asked = nil
        UIApplication.shared.unregisterForRemoteNotifications()
    }

    @objc public func listen(_ listener: @escaping (String) -> Void) {
        self.listener = listener
        let missed = [lastEvent].compactMap { $0 } + waiting
        waiting = []
        missed.forEach(listener)
    }

    @objc public func leave() { listener = nil }

    @objc public func handled(_ id: Int, error: String?) { handling.removeValue(forKey: id)?() }

    @objc public func setAlias(_ alias: String, proof: String?, done: @escaping (String?, String?) -> Void) {
        request(done) { $0.setAlias(alias, proof: proof.map(CarillonProof.text), completion: $1) }
    }

    @objc public func clearAlias(_ done: @escaping (String?, String?) -> Void) {
        request(done) { $0.clearAlias(completion: $1) }
    }

    @objc public func addTags(_ tags: [Int], proof: String?, done: @escaping (String?, String?) -> Void) {
        request(done) { $0.addTags(tags, proof: proof.map(CarillonProof.text), completion: $1) }
    }

    @objc public func removeTags(_ tags: [Int], done: @escaping (String?, String?) -> Void) {
        request(done) { $0.removeTags(tags, completion: $1) }
    }

    @objc public func addStags(_ stags: [String], proof: String?, done: @escaping (String?, String?) -> Void) {
        request(done) { $0.addStags(stags, proof: proof.map(CarillonProof.text), completion: $1) }
    }

    @objc public func removeStags(_ stags: [String], done: @escaping (String?, String?) -> Void) {
        request(done) { $0.removeStags(stags, completion: $1) }
    }

    @objc public func setAttributes(_ attributes: [String: String], done: @escaping (String?, String?) -> Void) {
        request(done) { $0.setAttributes(attributes, completion: $1) }
    }

    @objc public func getDevice(_ known: @escaping (String) -> Void, failed: @escaping (String, String) -> Void) {
        guard let device = device else { return failed("unavailable", CarillonReact.notStarted) }
        device.getDevice { result in
            switch result {
            case .success(let record):
                let alias: Any = record.alias ?? NSNull()
                known(
                    json(["alias": alias, "tags": record.tags, "stags": record.stags, "attributes": record.attributes]))
            case .failure(let error): failed(code(of: error), error.description)
            }
        }
    }

    @objc public func report(_ event: String, msgid: Int) {
        let userInfo: [AnyHashable: Any] = ["carillon": ["msgid": msgid]]
        if event == "clicked" { device?.clicked(userInfo) } else if event == "dismissed" { device?.dismissed(userInfo) }
    }

    @objc public func activity(_ event: String) {
        CarillonDevice.Activity(rawValue: event).map { activity in device?.activity(activity) }
    }

    @objc public func setBadge(_ count: Int) { CarillonDevice.setBadge(count, of: .shared) }

    @objc public func requestPermission(_ answer: @escaping (Bool) -> Void) {
        UNUserNotificationCenter.current().requestAuthorization(options: [.alert, .sound, .badge]) { isGranted, _ in
            answer(isGranted)
        }
    }

    // MARK: Within

    private static let notStarted = "call start first"

    private func keep(_ act: @escaping (CarillonDevice) -> Void) {
        beforeStart = (beforeStart + [act]).suffix(CarillonReact.mostWaiting)
    }

    private func request(
        _ done: @escaping (String?, String?) -> Void,
        _ send: (CarillonDevice, @escaping CarillonDevice.Completion) -> Void
    ) {
        guard let device = device else { return done("unavailable", CarillonReact.notStarted) }
        send(device) { result in
            if case .failure(let error) = result { done(code(of: error), error.description) } else { done(nil, nil) }
        }
    }

    private func take(_ event: CarillonEvent) {
        let fields: [String: Any]
        switch event {
        case .registered(let isNew, let ignored): fields = ["type": "connected", "isNew": isNew, "ignored": ignored]
        case .awaitsCode: fields = ["type": "awaitsCode"]
        case .refused(_, let description, let reason):
            fields = ["type": "ended", "reason": reason ?? "refused", "message": description]
        case .retries(let afterMs, let reason): fields = ["type": "retries", "afterMs": afterMs, "reason": reason]
        case .storeFailed(let message): fields = ["type": "failed", "message": message]
        }
        lastEvent = json(fields)
        tell(fields, waits: false)
    }

    private func tell(_ event: [String: Any], waits: Bool) {
        let text = json(event)
        if let listener = listener { return listener(text) }
        if waits { waiting = (waiting + [text]).suffix(CarillonReact.mostWaiting) }
    }

    private func shown(_ notification: UNNotification) -> [String: Any] {
        let content = notification.request.content
        return fields(of: content.userInfo).merging(["is_notif": 1, "title": content.title, "content": content.body]) {
            $1
        }
    }

    private func fields(of userInfo: [AnyHashable: Any]) -> [String: Any] {
        let push = CarillonPush(userInfo)
        var fields: [String: Any] = ["type": "push", "is_notif": 0]
        fields["msgid"] = push.msgid
        fields["extra"] = push.extra
        return fields
    }
}

private func json(_ fields: [String: Any]) -> String {
    String(decoding: (try? JSONSerialization.data(withJSONObject: fields)) ?? Data("{}".utf8), as: UTF8.self)
}

/// The service's code, or the kind of an error without one.
private func code(of error: CarillonError) -> String {
    switch error {
    case .refused(let code, _): return String(code)
    case .unavailable: return "unavailable"
    case .deadline: return "deadline"
    }
}
