import UIKit

/// Shows the screen, and opens links.
final class SceneDelegate: UIResponder, UIWindowSceneDelegate {
    var window: UIWindow?

    private var pushes: Pushes? { (UIApplication.shared.delegate as? AppDelegate)?.pushes }

    func scene(_ scene: UIScene, willConnectTo session: UISceneSession, options: UIScene.ConnectionOptions) {
        guard let scene = scene as? UIWindowScene, let pushes = pushes else { return }
        let window = UIWindow(windowScene: scene)
        window.rootViewController = StatusViewController(pushes)
        window.makeKeyAndVisible()
        self.window = window
        open(options.urlContexts)
    }

    func scene(_ scene: UIScene, openURLContexts contexts: Set<UIOpenURLContext>) { open(contexts) }

    func sceneDidBecomeActive(_ scene: UIScene) { pushes?.appear() }

    private func open(_ contexts: Set<UIOpenURLContext>) {
        if let link = contexts.first?.url { pushes?.open(link) }
    }
}
