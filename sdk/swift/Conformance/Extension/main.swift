// Runs an extension whose app has no configuration yet, with the declarations of Apple's frameworks.
import Carillon
import UserNotifications

final class NotificationService: CarillonNotificationService {
    override func prepare(_ content: UNMutableNotificationContent, ready: @escaping () -> Void) {
        fatalError("the notification is to stay as it came")
    }
}

let content = UNNotificationContent()
let request = UNNotificationRequest(identifier: "1", content: content, trigger: nil)
var shown: [UNNotificationContent] = []
let service = NotificationService()
service.didReceive(request) { shown.append($0) }
service.serviceExtensionTimeWillExpire()
print(shown.count == 1 && shown[0] === content ? "shown as it came" : "shown: \(shown)")
