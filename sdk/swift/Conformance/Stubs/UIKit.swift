// Declarations of Apple's UIKit framework, for the type check on other systems. They do nothing.
@_exported import Foundation

open class UIResponder: NSObject {}

public enum UIBackgroundFetchResult: UInt {
    case newData, noData, failed
}

open class UIApplication: UIResponder {
    public struct LaunchOptionsKey: Hashable {}
    open class var shared: UIApplication { UIApplication() }
    open var applicationIconBadgeNumber: Int = 0
    open func registerForRemoteNotifications() {}
}

public protocol UIApplicationDelegate: AnyObject {}

extension UIApplicationDelegate {
    public static func main() {}
}
