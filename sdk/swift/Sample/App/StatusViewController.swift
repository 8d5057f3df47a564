import Carillon
import UIKit

/// The one screen: the service, token and alias, a field for another alias, and the last messages.
final class StatusViewController: UIViewController {
    private let pushes: Pushes
    private let text = UITextView()
    private let alias = UITextField()

    init(_ pushes: Pushes) {
        self.pushes = pushes
        super.init(nibName: nil, bundle: nil)
    }

    required init?(coder: NSCoder) { nil }

    override func viewDidLoad() {
        super.viewDidLoad()
        view.backgroundColor = .systemBackground
        text.isEditable = false
        text.font = .preferredFont(forTextStyle: .body)
        alias.placeholder = "Another alias"
        alias.borderStyle = .roundedRect
        alias.autocapitalizationType = .none
        alias.addAction(UIAction { [weak self] _ in self?.setAlias() }, for: .editingDidEndOnExit)
        let stack = UIStackView(arrangedSubviews: [alias, text])
        stack.axis = .vertical
        stack.spacing = 12
        stack.translatesAutoresizingMaskIntoConstraints = false
        view.addSubview(stack)
        let area = view.safeAreaLayoutGuide
        NSLayoutConstraint.activate([
            stack.topAnchor.constraint(equalTo: area.topAnchor, constant: 12),
            stack.bottomAnchor.constraint(equalTo: area.bottomAnchor, constant: -12),
            stack.leadingAnchor.constraint(equalTo: area.leadingAnchor, constant: 16),
            stack.trailingAnchor.constraint(equalTo: area.trailingAnchor, constant: -16),
        ])
        pushes.onChange = { [weak self] in self?.show() }
        show()
    }

    private func setAlias() {
        pushes.setAlias(alias.text ?? "")
        alias.text = nil
    }

    private func show() {
        let connection = pushes.connection
        let fields: [(String, String?)] = [
            ("Service", connection?.url.absoluteString), ("App", connection?.appkey), ("Token", pushes.token),
            ("Alias", pushes.alias), ("Now", pushes.event),
        ]
        let lines = fields.map { "\($0.0): \($0.1 ?? "none")" }
        text.text = (lines + ["", "Last messages"] + pushes.messages).joined(separator: "\n")
    }
}
