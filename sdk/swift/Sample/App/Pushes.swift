import Carillon
import UIKit
import UserNotifications

/// The device at the service that a link has named, and what the screen shows of it.
@MainActor
final class Pushes {
    private static let mostMessages = 20

    private(set) var connection: Connection?
    private(set) var token: String?
    private(set) var alias: String?
    private(set) var event = "open a link carillon://connect?url=…&appkey=…"

    /// The last messages, newest first.
    private(set) var messages: [String] = []

    /// Called when any of these has changed.
    var onChange: () -> Void = {}

    private var device: CarillonDevice?
    private var listed: Set<String> = []

    /// Connects as the last time, if there was one.
    func resume() {
        if let connection = Connection.load(from: AppGroup.folder) { connect(connection) }
    }

    func open(_ link: URL) {
        guard let connection = Connection(link: link) else { return tell("the link names no http address and appkey") }
        do {
            guard let folder = AppGroup.folder else { return tell("the app has no app group") }
            try connection.save(in: folder)
        } catch { return tell("the link could not be saved: \(error.localizedDescription)") }
        connect(connection)
        UNUserNotificationCenter.current().requestAuthorization(options: [.alert, .sound, .badge]) { isGranted, _ in
            DispatchQueue.main.async { if !isGranted { self.tell("notifications are not permitted") } }
        }
    }

    private func connect(_ connection: Connection) {
        self.connection = connection
        alias = nil
        device = CarillonDevice(connection.config(appGroup: AppGroup.name)) { [weak self] event in self?.take(event) }
        tell("waits for Apple's token")
        UIApplication.shared.registerForRemoteNotifications()
    }

    func register(_ token: Data) {
        self.token = token.map { String(format: "%02x", $0) }.joined()
        device?.setDeviceToken(token)
        onChange()
    }

    func setAlias(_ alias: String) {
        guard let device = device else { return }
        let done: CarillonDevice.Completion = { [weak self] result in
            if case .failure(let error) = result { self?.tell("alias: \(error)") }
            self?.ask()
        }
        if alias.isEmpty { device.clearAlias(completion: done) } else { device.setAlias(alias, completion: done) }
    }

    /// The app has come to the front: lists what was shown while it was not.
    func appear() {
        CarillonDevice.setBadge(0, of: .shared)
        device?.activity(.open)
        UNUserNotificationCenter.current().getDeliveredNotifications { delivered in
            DispatchQueue.main.async { self.list(delivered.sorted { $0.date < $1.date }) }
        }
    }

    func receive(_ userInfo: [AnyHashable: Any], _ completion: @escaping () -> Void) {
        if let content = CarillonPush(userInfo).content { list("for the app: \(content)") }
        guard let device = device else { return completion() }
        device.received(userInfo) { _ in completion() }
    }

    func respond(_ response: UNNotificationResponse, _ completion: @escaping () -> Void) {
        list([response.notification])
        guard let device = device else { return completion() }
        device.received(response, completion: completion)
    }

    func list(_ notifications: [UNNotification]) {
        for notification in notifications where listed.insert(notification.request.identifier).inserted {
            let content = notification.request.content
            list([content.title, content.body].filter { !$0.isEmpty }.joined(separator: ": "))
        }
    }

    private func list(_ message: String) {
        messages = Array(([message] + messages).prefix(Pushes.mostMessages))
        onChange()
    }

    func tell(_ event: String) {
        self.event = event
        onChange()
    }

    private func take(_ event: CarillonEvent) {
        tell("\(event)")
        if case .registered = event { ask() }
    }

    private func ask() {
        device?.getDevice { [weak self] result in
            guard case .success(let known) = result else { return }
            self?.alias = known.alias
            self?.onChange()
        }
    }
}
