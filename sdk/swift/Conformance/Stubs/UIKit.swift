// Declarations of Apple's UIKit framework, for the type check on other systems. They do nothing. As there, the main
// actor has the classes and delegates.
@_exported import Foundation

@MainActor
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

@MainActor
public protocol UIApplicationDelegate: AnyObject {}

extension UIApplicationDelegate {
    public static func main() {}
}
