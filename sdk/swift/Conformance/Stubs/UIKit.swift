// Declarations of Apple's UIKit framework, for the type check on other systems. They do nothing. As there, the main
// actor has the classes and delegates.
@_exported import Foundation

@MainActor
open class UIResponder: NSObject {}

// MARK: The app

public enum UIBackgroundFetchResult: UInt {
    case newData, noData, failed
}

open class UIApplication: UIResponder {
    public struct LaunchOptionsKey: Hashable {}
    open class var shared: UIApplication { UIApplication() }
    open weak var delegate: UIApplicationDelegate?
    open var applicationIconBadgeNumber: Int = 0
    open func registerForRemoteNotifications() {}
    open func unregisterForRemoteNotifications() {}
}

@MainActor
public protocol UIApplicationDelegate: AnyObject {}

extension UIApplicationDelegate {
    public static func main() {}
}

open class UISceneSession: NSObject {}

@MainActor
open class UIOpenURLContext: NSObject {
    open var url: URL { URL(fileURLWithPath: "/") }
}

open class UIScene: UIResponder {
    @MainActor
    open class ConnectionOptions: NSObject {
        open var urlContexts: Set<UIOpenURLContext> { [] }
    }
}

open class UIWindowScene: UIScene {}

@MainActor
public protocol UISceneDelegate: AnyObject {}

public protocol UIWindowSceneDelegate: UISceneDelegate {}

// MARK: Views

open class UIColor: NSObject {
    open class var systemBackground: UIColor { UIColor() }
}

open class UIFont: NSObject {
    public struct TextStyle {
        public static let body = TextStyle()
    }
    open class func preferredFont(forTextStyle style: TextStyle) -> UIFont { UIFont() }
}

@MainActor
open class NSLayoutAnchor<AnchorType: AnyObject>: NSObject {
    open func constraint(equalTo anchor: NSLayoutAnchor<AnchorType>, constant: CGFloat) -> NSLayoutConstraint {
        NSLayoutConstraint()
    }
}

open class NSLayoutXAxisAnchor: NSLayoutAnchor<NSLayoutXAxisAnchor> {}
open class NSLayoutYAxisAnchor: NSLayoutAnchor<NSLayoutYAxisAnchor> {}

@MainActor
open class NSLayoutConstraint: NSObject {
    public enum Axis: Int {
        case horizontal, vertical
    }
    open class func activate(_ constraints: [NSLayoutConstraint]) {}
}

@MainActor
open class UILayoutGuide: NSObject {
    open var topAnchor: NSLayoutYAxisAnchor { NSLayoutYAxisAnchor() }
    open var bottomAnchor: NSLayoutYAxisAnchor { NSLayoutYAxisAnchor() }
    open var leadingAnchor: NSLayoutXAxisAnchor { NSLayoutXAxisAnchor() }
    open var trailingAnchor: NSLayoutXAxisAnchor { NSLayoutXAxisAnchor() }
}

open class UIView: UIResponder {
    open var backgroundColor: UIColor?
    open var translatesAutoresizingMaskIntoConstraints = true
    open var safeAreaLayoutGuide: UILayoutGuide { UILayoutGuide() }
    open var topAnchor: NSLayoutYAxisAnchor { NSLayoutYAxisAnchor() }
    open var bottomAnchor: NSLayoutYAxisAnchor { NSLayoutYAxisAnchor() }
    open var leadingAnchor: NSLayoutXAxisAnchor { NSLayoutXAxisAnchor() }
    open var trailingAnchor: NSLayoutXAxisAnchor { NSLayoutXAxisAnchor() }
    open func addSubview(_ view: UIView) {}
}

open class UIWindow: UIView {
    public convenience init(windowScene: UIWindowScene) { self.init() }
    open var rootViewController: UIViewController?
    open func makeKeyAndVisible() {}
}

open class UIViewController: UIResponder {
    public init(nibName: String?, bundle: Bundle?) {}
    public required init?(coder: NSCoder) { nil }
    open var view: UIView! = UIView()
    open func viewDidLoad() {}
}

open class UIStackView: UIView {
    public convenience init(arrangedSubviews views: [UIView]) { self.init() }
    open var axis = NSLayoutConstraint.Axis.horizontal
    open var spacing: CGFloat = 0
}

open class UITextView: UIView {
    open var text: String! = ""
    open var font: UIFont?
    open var isEditable = true
}

@MainActor
open class UIAction: NSObject {
    public convenience init(title: String = "", handler: @escaping (UIAction) -> Void) { self.init() }
}

open class UIControl: UIView {
    public struct Event: OptionSet {
        public let rawValue: UInt
        public init(rawValue: UInt) { self.rawValue = rawValue }
        public static let editingDidEndOnExit = Event(rawValue: 1)
    }
    open func addAction(_ action: UIAction, for controlEvents: Event) {}
}

public enum UITextAutocapitalizationType: Int {
    case none, words, sentences, allCharacters
}

open class UITextField: UIControl {
    public enum BorderStyle: Int {
        case none, line, bezel, roundedRect
    }
    open var text: String?
    open var placeholder: String?
    open var borderStyle = BorderStyle.none
    open var autocapitalizationType = UITextAutocapitalizationType.sentences
}
