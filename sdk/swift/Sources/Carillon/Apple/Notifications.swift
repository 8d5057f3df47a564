#if canImport(UIKit) && canImport(UserNotifications)
import Foundation
import UIKit
import UserNotifications

/// The category of notifications that have none, so that their dismissal can be reported too.
let carillonCategory = "carillon"

extension CarillonDevice {
    /// Takes a response from `userNotificationCenter(_:didReceive:withCompletionHandler:)`: a tap, on the notification or
    /// on one of its actions, is reported as clicked, and a dismissal as dismissed.
    public func received(_ response: UNNotificationResponse, completion: @escaping () -> Void = {}) {
        let userInfo = response.notification.request.content.userInfo
        if response.actionIdentifier == UNNotificationDismissActionIdentifier {
            dismissed(userInfo, completion: completion)
        } else {
            clicked(userInfo, completion: completion)
        }
    }

    /// Sets the app's categories, and that their dismissals are told. Call it instead of `setNotificationCategories`.
    public static func setCategories(_ own: Set<UNNotificationCategory> = []) {
        let plain = UNNotificationCategory(identifier: carillonCategory, actions: [], intentIdentifiers: [], options: [])
        let told = own.union([plain]).map { category in
            UNNotificationCategory(
                identifier: category.identifier, actions: category.actions, intentIdentifiers: category.intentIdentifiers,
                hiddenPreviewsBodyPlaceholder: category.hiddenPreviewsBodyPlaceholder,
                categorySummaryFormat: category.categorySummaryFormat,
                options: category.options.union(.customDismissAction))
        }
        UNUserNotificationCenter.current().setNotificationCategories(Set(told))
    }

    /// Sets the number at the app's icon. UIKit's objects belong to the main thread.
    @MainActor
    public static func setBadge(_ count: Int, of application: UIApplication) {
        if #available(iOS 16, *) {
            UNUserNotificationCenter.current().setBadgeCount(count, withCompletionHandler: nil)
        } else {
            application.applicationIconBadgeNumber = count
        }
    }
}

/// A notification service extension that acknowledges each notification and reports it as shown. Subclass it, and name
/// the subclass as `NSExtensionPrincipalClass`.
open class CarillonNotificationService: UNNotificationServiceExtension {
    private let lock = NSLock()
    private var deliver: (() -> Void)?

    /// The configuration that the app has too. Without one, as before the app has stored what it asked for, the
    /// notification is shown as it came, and nothing is reported.
    open var config: CarillonConfig? { nil }

    /// Changes the notification before it is shown, such as by a picture. Call `ready` within 20 s.
    open func prepare(_ content: UNMutableNotificationContent, ready: @escaping () -> Void) { ready() }

    public override func didReceive(
        _ request: UNNotificationRequest, withContentHandler contentHandler: @escaping (UNNotificationContent) -> Void
    ) {
        guard let config = config, let content = request.content.mutableCopy() as? UNMutableNotificationContent
        else { return contentHandler(request.content) }
        if content.categoryIdentifier.isEmpty { content.categoryIdentifier = carillonCategory }
        lock.lock()
        deliver = { contentHandler(content) }
        lock.unlock()
        // iOS may end the extension as soon as the notification is handed over. What is not told by then is told later.
        let both = DispatchGroup()
        both.enter()
        both.enter()
        let told = once(both.leave)
        CarillonReports(config).shown(content.userInfo, completion: told)
        DispatchQueue.global().asyncAfter(deadline: .now() + 5) { told() }
        prepare(content, ready: once(both.leave))
        both.notify(queue: .global()) { self.handOver() }
    }

    public override func serviceExtensionTimeWillExpire() { handOver() }

    private func handOver() {
        lock.lock()
        let deliver = self.deliver
        self.deliver = nil
        lock.unlock()
        deliver?()
    }
}
#endif
