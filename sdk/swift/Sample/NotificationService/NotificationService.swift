import Carillon
import UserNotifications

/// Reports each notification as received and shown, to the service that the app is connected to.
final class NotificationService: CarillonNotificationService {
    override var config: CarillonConfig? { Connection.load(from: AppGroup.folder)?.config(appGroup: AppGroup.name) }
}
