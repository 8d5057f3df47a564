import Foundation

/// Tells the service what became of notifications: each report is stored first, then sent, oldest first, until the
/// service has confirmed it, also by a later process. The last 200 are kept.
///
/// A notification service extension uses it by itself; `CarillonDevice` has one of its own.
public final class CarillonReports {
    static let all: Set<String> = ["ack", "report", "activity"]

    private let queue: DispatchQueue
    private let store: CarillonStore
    private let waiting: WaitingReports
    private let sender: FrameSender
    private let schedule: CarillonSchedule
    private let types: Set<String>

    // Used on the queue alone.
    private var isSending = false
    private var isAgain = false
    private var isPaused = false
    private var afterSending: [() -> Void] = []

    /// Called on the queue when the service refuses the device itself; `true`: its key.
    var onRefused: (_ isKey: Bool) -> Void = { _ in }

    /// Called on the queue when the service has confirmed a report.
    var onConfirmed: () -> Void = {}

    /// Of an extension. An app that runs at the same time sends its own use, which would count twice if repeated.
    public convenience init(
        _ config: CarillonConfig, store: CarillonStore, folder: URL, transport: CarillonTransport? = nil,
        schedule: CarillonSchedule? = nil
    ) {
        let queue = DispatchQueue(label: "dev.carillon.reports")
        let schedule = schedule ?? scheduleByClock
        let sender = FrameSender(config.url, transport ?? SessionTransport(), schedule, queue)
        self.init(queue, store, folder, sender, schedule, ["ack", "report"])
    }

    init(
        _ queue: DispatchQueue, _ store: CarillonStore, _ folder: URL, _ sender: FrameSender,
        _ schedule: @escaping CarillonSchedule, _ types: Set<String> = CarillonReports.all
    ) {
        self.queue = queue
        self.store = store
        waiting = WaitingReports(folder)
        self.sender = sender
        self.schedule = schedule
        self.types = types
    }

    /// Tells that a notification came, and is about to be shown. Without effect for pushes without a message id.
    public func shown(_ userInfo: [AnyHashable: Any], completion: @escaping () -> Void = {}) {
        put(CarillonPush(userInfo).msgid.map { [acknowledgement($0), report("shown", $0)] } ?? [], completion)
    }

    /// Stores frames, then sends all that wait. `completion` runs on the queue when nothing more is sent.
    func put(_ frames: [Frame], _ completion: @escaping () -> Void = {}) {
        queue.async {
            // A full disk loses reports, and nothing else.
            try? self.waiting.put(frames)
            self.send(completion)
        }
    }

    /// Sends what waits. Call it on the queue.
    func send(_ completion: @escaping () -> Void = {}) {
        afterSending.append(completion)
        isAgain = true
        if !isSending && !isPaused { next() }
        if isPaused { end() }
    }

    private func next() {
        isAgain = false
        isSending = true
        guard let report = waiting.oldest(of: types), let fields = identity()?.fields else { return end() }
        sender.send(report.frame, as: fields) { result in
            guard case .success(let answer) = result else { return self.end() }
            if !answer.isError {
                self.onConfirmed()
            } else if answer.refusesKey || answer.missesDevice {
                self.isAgain = false
                self.end()
                return self.onRefused(answer.refusesKey)
            } else if answer.code != 400 {
                self.pause(answer.retryAfterS)
                return self.end()
            }
            // Confirmed, or wrong: repeated, it would be refused again.
            self.waiting.remove(report.name)
            self.next()
        }
    }

    private func end() {
        isSending = false
        if isAgain && !isPaused { return next() }
        let ended = afterSending
        afterSending = []
        ended.forEach { $0() }
    }

    /// Sends nothing while the service has asked for a pause, then sends what waits.
    private func pause(_ seconds: Double?) {
        guard let seconds = seconds, seconds > 0 else { return }
        isPaused = true
        _ = schedule(seconds * 1000) {
            self.queue.async {
                self.isPaused = false
                self.send()
            }
        }
    }

    private func identity() -> Identity? {
        (try? Identity.stored(in: store)).flatMap { $0 }
    }
}

func acknowledgement(_ msgid: Int) -> Frame { ["type": "ack", "msgids": [msgid]] }

func report(_ event: String, _ msgid: Int) -> Frame { ["type": "report", "event": event, "msgid": msgid] }
