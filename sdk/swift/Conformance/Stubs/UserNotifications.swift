// Declarations of Apple's UserNotifications framework, for the type check on other systems. They do nothing, but
// requests have their content, so that the extension runs.
@_exported import Foundation

public let UNNotificationDefaultActionIdentifier = "com.apple.UNNotificationDefaultActionIdentifier"
public let UNNotificationDismissActionIdentifier = "com.apple.UNNotificationDismissActionIdentifier"

open class UNNotificationContent: NSObject, NSMutableCopying {
    open var title: String { "" }
    open var body: String { "" }
    open var userInfo: [AnyHashable: Any] { [:] }
    open var categoryIdentifier: String { "" }
    public func mutableCopy(with zone: NSZone? = nil) -> Any { UNMutableNotificationContent() }
}

open class UNMutableNotificationContent: UNNotificationContent {
    open override var userInfo: [AnyHashable: Any] {
        get { [:] }
        set {}
    }
    open override var categoryIdentifier: String {
        get { "" }
        set {}
    }
}

open class UNNotificationRequest: NSObject {
    open private(set) var identifier = ""
    open private(set) var content = UNNotificationContent()

    public convenience init(identifier: String, content: UNNotificationContent, trigger: UNNotificationTrigger?) {
        self.init()
        self.identifier = identifier
        self.content = content
    }
}

open class UNNotificationTrigger: NSObject {}

open class UNNotification: NSObject {
    open var date: Date { Date() }
    open var request: UNNotificationRequest { UNNotificationRequest() }
}

open class UNNotificationResponse: NSObject {
    open var notification: UNNotification { UNNotification() }
    open var actionIdentifier: String { "" }
}

open class UNNotificationAction: NSObject {}

public struct UNNotificationCategoryOptions: OptionSet {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let customDismissAction = UNNotificationCategoryOptions(rawValue: 1)
}

public struct UNNotificationPresentationOptions: OptionSet {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let badge = UNNotificationPresentationOptions(rawValue: 1)
    public static let sound = UNNotificationPresentationOptions(rawValue: 2)
    public static let alert = UNNotificationPresentationOptions(rawValue: 4)
    @available(iOS 14, *)
    public static let list = UNNotificationPresentationOptions(rawValue: 8)
    @available(iOS 14, *)
    public static let banner = UNNotificationPresentationOptions(rawValue: 16)
}

public struct UNAuthorizationOptions: OptionSet {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let badge = UNAuthorizationOptions(rawValue: 1)
    public static let sound = UNAuthorizationOptions(rawValue: 2)
    public static let alert = UNAuthorizationOptions(rawValue: 4)
}

open class UNNotificationCategory: NSObject {
    open var identifier: String { "" }
    open var actions: [UNNotificationAction] { [] }
    open var intentIdentifiers: [String] { [] }
    open var hiddenPreviewsBodyPlaceholder: String { "" }
    open var categorySummaryFormat: String { "" }
    open var options: UNNotificationCategoryOptions { [] }

    public convenience init(
        identifier: String, actions: [UNNotificationAction], intentIdentifiers: [String],
        options: UNNotificationCategoryOptions = []
    ) { self.init() }

    public convenience init(
        identifier: String, actions: [UNNotificationAction], intentIdentifiers: [String],
        hiddenPreviewsBodyPlaceholder: String?, categorySummaryFormat: String?, options: UNNotificationCategoryOptions = []
    ) { self.init() }
}

public protocol UNUserNotificationCenterDelegate: AnyObject {}

open class UNUserNotificationCenter: NSObject {
    open class func current() -> UNUserNotificationCenter { UNUserNotificationCenter() }
    open weak var delegate: UNUserNotificationCenterDelegate?
    open func setNotificationCategories(_ categories: Set<UNNotificationCategory>) {}
    open func requestAuthorization(
        options: UNAuthorizationOptions = [], completionHandler: @escaping @Sendable (Bool, Error?) -> Void
    ) {}
    open func getDeliveredNotifications(completionHandler: @escaping @Sendable ([UNNotification]) -> Void) {}

    @available(iOS 16, *)
    open func setBadgeCount(_ newBadgeCount: Int, withCompletionHandler completionHandler: ((Error?) -> Void)?) {}
}

open class UNNotificationServiceExtension: NSObject {
    open func didReceive(
        _ request: UNNotificationRequest, withContentHandler contentHandler: @escaping (UNNotificationContent) -> Void
    ) {}
    open func serviceExtensionTimeWillExpire() {}
}
