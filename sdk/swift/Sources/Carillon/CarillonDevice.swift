import Foundation

/// A proof of the app's server that an alias, or tags, are the user's: see docs/app-servers.md.
public enum CarillonProof {
    /// Handed in once.
    case text(String)

    /// Fetched for each attempt: after a proof that is refused, as one that has expired is, another one is fetched with
    /// growing delays, three in all. The function calls back within 30 s, on any thread.
    case fetched((@escaping (Result<String, Error>) -> Void) -> Void)
}

/// An iPhone's device at the service: it registers the token that Apple gave, renews the registration at each start,
/// recovers its identity, and sends requests and reports.
///
/// Making one does nothing: nothing is read, stored or sent before the first call. Every function may be called from any
/// thread and returns at once. Frames are sent one after the other; answers and events come on the main queue, or on
/// that of `callbacks`.
public final class CarillonDevice {
    public typealias Completion = (Result<Void, CarillonError>) -> Void

    /// How the app is used.
    public enum Activity: String {
        case open, login, logout
    }

    private static let codeWaitMs = 65_000.0
    private static let codeAttempts = 3
    private static let proofAttempts = 3
    private static let proofRetryMs = 3_000.0
    private static let proofDeadlineMs = 30_000.0
    private static let longestRetryMs = 300_000.0

    /// Apple gives a silent push 30 s of the background.
    private static let backgroundMs = 20_000.0

    /// Recoveries without an answer `ok` in between; more would only repeat what was refused.
    private static let mostRecoveries = 2

    /// Apple's environment of this build, which decides the appkey.
    public let environment: ApnsEnvironment

    private let appkey: String
    private let attributes: [String: String]
    private let store: CarillonStore
    private let sender: FrameSender
    private let reports: CarillonReports
    private let schedule: CarillonSchedule
    private let callbacks: DispatchQueue
    private let random: () -> Double
    private let onEvent: (CarillonEvent) -> Void
    private let queue: DispatchQueue

    // Used on the queue alone.
    private var turns: [(_ done: @escaping () -> Void) -> Void] = []
    private var isBusy = false
    private var known: Identity?
    private var isLoaded = false
    private var appleToken: String?
    private var code: String?
    private var codeHellos = 0
    private var failures = 0
    private var recoveries = 0
    private var cancelRetry = {}

    /// `folder`: where reports wait, shared with the extension.
    public init(
        _ config: CarillonConfig, store: CarillonStore, folder: URL, environment: ApnsEnvironment = .ofThisBuild,
        transport: CarillonTransport? = nil, schedule: CarillonSchedule? = nil, callbacks: DispatchQueue = .main,
        random: @escaping () -> Double = { Double.random(in: 0..<1) }, onEvent: @escaping (CarillonEvent) -> Void = { _ in }
    ) {
        let schedule = schedule ?? scheduleByClock
        let queue = DispatchQueue(label: "dev.carillon.device")
        self.queue = queue
        self.environment = environment
        appkey = config.appkey(in: environment)
        attributes = attributesOfThisPhone().merging(config.attributes) { _, own in own }
        self.store = store
        let sender = FrameSender(config.url, transport ?? SessionTransport(), schedule, queue)
        self.sender = sender
        reports = CarillonReports(queue, store, folder, sender, schedule)
        self.schedule = schedule
        self.callbacks = callbacks
        self.random = random
        self.onEvent = onEvent
        reports.onConfirmed = { [weak self] in self?.recoveries = 0 }
        reports.onRefused = { [weak self] isKey in self?.recoverForReports(isKey) }
    }

    // MARK: What the app forwards

    /// Takes the token that Apple gave, and says hello with it. Call it at each start, from
    /// `application(_:didRegisterForRemoteNotificationsWithDeviceToken:)`. Another token than before is another device,
    /// whose alias and tags are to be set.
    public func setDeviceToken(_ token: Data) {
        let text = token.map { byte in (byte < 16 ? "0" : "") + String(byte, radix: 16) }.joined()
        enqueue { done in
            self.appleToken = text
            self.codeHellos = 0
            self.recoveries = 0
            self.sayHello { _ in done() }
        }
    }

    /// Takes a notification from `application(_:didReceiveRemoteNotification:fetchCompletionHandler:)`: acknowledges it,
    /// or opens a device whose key was lost by the code that it brings. `completion` says whether it was for the SDK alone.
    public func received(_ userInfo: [AnyHashable: Any], completion: @escaping (Bool) -> Void = { _ in }) {
        let push = CarillonPush(userInfo)
        let ended = inBackground { completion(push.code != nil) }
        if let code = push.code {
            enqueue { done in
                self.code = code
                self.sayHello { _ in
                    ended()
                    done()
                }
            }
        } else {
            reports.put(push.msgid.map { [acknowledgement($0)] } ?? [], ended)
        }
    }

    /// Reports that the user tapped a notification.
    public func clicked(_ userInfo: [AnyHashable: Any], completion: @escaping () -> Void = {}) {
        report("clicked", userInfo, completion)
    }

    /// Reports that the user dismissed a notification, whose category has `customDismissAction`.
    public func dismissed(_ userInfo: [AnyHashable: Any], completion: @escaping () -> Void = {}) {
        report("dismissed", userInfo, completion)
    }

    /// Reports how the app is used. `open`, at each start, also sets back the badge that the service counts.
    public func activity(_ activity: Activity, completion: @escaping () -> Void = {}) {
        reports.put([["type": "activity", "event": activity.rawValue]]) { self.callbacks.async { completion() } }
    }

    private func report(_ event: String, _ userInfo: [AnyHashable: Any], _ completion: @escaping () -> Void) {
        reports.put(CarillonPush(userInfo).msgid.map { [Carillon.report(event, $0)] } ?? [], inBackground(completion))
    }

    /// Returns a function that calls back, which happens by itself before iOS suspends the app.
    private func inBackground(_ completion: @escaping () -> Void) -> () -> Void {
        var cancel = {}
        let ended = once {
            cancel()
            self.callbacks.async { completion() }
        }
        cancel = schedule(CarillonDevice.backgroundMs, ended)
        return ended
    }

    // MARK: Requests

    /// Sets the alias; `proof` shows that it is the user's.
    public func setAlias(_ alias: String, proof: CarillonProof? = nil, completion: @escaping Completion = { _ in }) {
        prove(["type": "set_alias", "alias": alias], proof, completion)
    }

    public func clearAlias(completion: @escaping Completion = { _ in }) {
        request(["type": "clear_alias"], completion)
    }

    /// Adds tags; `proof`, as for `setAlias`, for those that address one person.
    public func addTags(_ tags: [Int], proof: CarillonProof? = nil, completion: @escaping Completion = { _ in }) {
        prove(["type": "add_tags", "tags": tags], proof, completion)
    }

    public func removeTags(_ tags: [Int], completion: @escaping Completion = { _ in }) {
        request(["type": "remove_tags", "tags": tags], completion)
    }

    /// Adds string tags; `proof`, as for `setAlias`, for those that address one person.
    public func addStags(_ stags: [String], proof: CarillonProof? = nil, completion: @escaping Completion = { _ in }) {
        prove(["type": "add_stags", "stags": stags], proof, completion)
    }

    public func removeStags(_ stags: [String], completion: @escaping Completion = { _ in }) {
        request(["type": "remove_stags", "stags": stags], completion)
    }

    public func setAttributes(_ attributes: [String: String], completion: @escaping Completion = { _ in }) {
        request(["type": "set_attributes", "device": attributes], completion)
    }

    /// Asks what the service knows of the device.
    public func getDevice(completion: @escaping (Result<CarillonKnownDevice, CarillonError>) -> Void) {
        ask(["type": "get_device"]) { result in
            self.callbacks.async { completion(result.map(CarillonKnownDevice.init)) }
        }
    }

    private func request(_ frame: Frame, _ completion: @escaping Completion) {
        ask(frame) { result in self.callbacks.async { completion(result.map { _ in }) } }
    }

    private func prove(_ frame: Frame, _ proof: CarillonProof?, _ completion: @escaping Completion) {
        switch proof {
        case nil: request(frame, completion)
        case .text(let text): request(frame.merging(["proof": text]) { own, _ in own }, completion)
        case .fetched(let fetch): prove(frame, by: fetch, attempt: 1, completion)
        }
    }

    private func prove(
        _ frame: Frame, by fetch: @escaping (@escaping (Result<String, Error>) -> Void) -> Void, attempt: Int,
        _ completion: @escaping Completion
    ) {
        let first = First()
        let take: (Result<String, CarillonError>) -> Void = { fetched in
            self.queue.async {
                guard first.take() else { return }
                guard case .success(let proof) = fetched else {
                    return self.callbacks.async { completion(fetched.map { _ in }) }
                }
                self.ask(frame.merging(["proof": proof]) { own, _ in own }) { result in
                    guard attempt < CarillonDevice.proofAttempts, case .failure(.refused(let code, _)) = result,
                        code == 401 || code == 429
                    else { return self.callbacks.async { completion(result.map { _ in }) } }
                    let delayMs = CarillonDevice.proofRetryMs * Double(1 << (attempt - 1)) * (1 + self.random())
                    _ = self.schedule(delayMs) { self.prove(frame, by: fetch, attempt: attempt + 1, completion) }
                }
            }
        }
        let cancel = schedule(CarillonDevice.proofDeadlineMs) { take(.failure(.deadline)) }
        callbacks.async {
            fetch { fetched in
                cancel()
                take(fetched.mapError { .unavailable("no proof: \($0.localizedDescription)") })
            }
        }
    }

    /// Sends a request in its turn. `then` runs on the queue; an error of the service is a failure there.
    private func ask(_ frame: Frame, _ then: @escaping (Result<Answer, CarillonError>) -> Void) {
        enqueue { done in
            self.attempt(frame) { result in
                then(result)
                done()
            }
        }
    }

    private func attempt(_ frame: Frame, _ then: @escaping (Result<Answer, CarillonError>) -> Void) {
        guard let fields = identity()?.fields else {
            return then(.failure(.unavailable("the device is not registered yet: repeat the request when it is")))
        }
        sender.send(frame, as: fields) { result in
            guard case .success(let answer) = result else { return then(result) }
            if !answer.isError {
                self.recoveries = 0
                return then(result)
            }
            let refused = CarillonError.refused(code: answer.code, description: answer.description)
            guard self.mayRecover(from: answer) else { return then(.failure(refused)) }
            self.recover(answer.refusesKey) { isRegistered in
                if isRegistered { self.attempt(frame, then) } else { then(.failure(refused)) }
            }
        }
    }

    // MARK: The identity

    private func mayRecover(from answer: Answer) -> Bool {
        (answer.refusesKey || answer.missesDevice) && recoveries < CarillonDevice.mostRecoveries
    }

    /// Says hello again, without the key if the service refuses it.
    private func recover(_ isKey: Bool, _ then: @escaping (Bool) -> Void) {
        recoveries += 1
        if isKey { forgetKey() }
        sayHello(then)
    }

    private func recoverForReports(_ isKey: Bool) {
        guard recoveries < CarillonDevice.mostRecoveries else { return }
        enqueue { done in self.recover(isKey) { _ in done() } }
    }

    /// Registers the token, or renews its registration. `then` says whether the service knows the device now.
    private func sayHello(_ then: @escaping (Bool) -> Void) {
        cancelRetry()
        let known: Identity?
        do { known = try loaded() } catch {
            tell(.storeFailed(error.localizedDescription))
            retry(after: nil, "the identity could not be read")
            return then(false)
        }
        // Apple has not given the token yet; a code waits for it.
        guard let token = appleToken ?? known?.token else { return then(false) }
        let isSame = known?.token.lowercased() == token.lowercased()
        let key = isSame ? known?.key : nil
        let code = self.code
        self.code = nil
        var frame: Frame = ["type": "hello", "device": attributes]
        frame["code"] = code
        let hasKey = code == nil && key != nil
        if hasKey { frame["key"] = key }
        sender.send(frame, as: ["appkey": appkey, "token": token]) { result in
            switch result {
            case .success(let answer) where answer.type == "welcome":
                then(self.welcomed(answer))
            case .success(let answer) where answer.refusesKey && answer.reason == nil && hasKey:
                // The token is not registered, and this is not its key.
                self.forgetKey()
                self.sayHello(then)
            case .success(let answer):
                self.refused(answer)
                then(false)
            case .failure(let error):
                if self.code == nil { self.code = code }
                self.retry(after: nil, error.description)
                then(false)
            }
        }
    }

    private func welcomed(_ answer: Answer) -> Bool {
        guard let token = answer.frame["token"] as? String, let key = answer.frame["key"] as? String else {
            retry(after: nil, "a welcome without an identity")
            return false
        }
        do { try save(Identity(appkey: appkey, token: token, key: key)) } catch {
            tell(.storeFailed(error.localizedDescription))
            retry(after: nil, "the identity could not be saved")
            return false
        }
        failures = 0
        codeHellos = 0
        // First, so that it sends none that the extension stores, and sends itself, after the event.
        reports.send()
        let ignored = answer.frame["ignored"] as? [String] ?? []
        tell(.registered(isNew: answer.frame["new"] as? Bool ?? false, ignored: ignored))
        return true
    }

    private func refused(_ answer: Answer) {
        switch (answer.code, answer.reason) {
        case (401, "possession"?):
            forgetKey()
            tell(.awaitsCode)
            codeHellos += 1
            if codeHellos < CarillonDevice.codeAttempts { again(afterMs: CarillonDevice.codeWaitMs) }
        case (400, _), (401, _):
            tell(.refused(code: answer.code, description: answer.description, reason: answer.reason))
        default:
            retry(after: answer.retryAfterS, answer.description)
        }
    }

    /// Says hello again after the time that the service asks for, and a random one that grows with each failure.
    private func retry(after seconds: Double?, _ why: String) {
        failures += 1
        let bound = min(CarillonDevice.longestRetryMs, 1000 * Double(1 << min(failures, 10)))
        let afterMs = (max(0, min(seconds ?? 0, 86_400)) * 1000 + bound * random()).rounded()
        tell(.retries(afterMs: Int(afterMs), because: why))
        again(afterMs: afterMs)
    }

    private func again(afterMs: Double) {
        cancelRetry()
        cancelRetry = schedule(afterMs) {
            self.enqueue { done in self.sayHello { _ in done() } }
        }
    }

    /// The identity for frames; nil if there is none, or none that can be read now.
    private func identity() -> Identity? { (try? loaded()).flatMap { $0 } }

    private func loaded() throws -> Identity? {
        if !isLoaded {
            known = try Identity.stored(in: store)
            isLoaded = true
            // Of a build for the other environment.
            if known?.appkey != appkey { known = nil }
        }
        return known
    }

    private func save(_ identity: Identity) throws {
        if identity == known { return }
        try store.save(try JSONEncoder().encode(identity))
        known = identity
    }

    private func forgetKey() {
        guard var identity = identity(), identity.key != nil else { return }
        identity.key = nil
        do { try save(identity) } catch { tell(.storeFailed(error.localizedDescription)) }
        known = identity
    }

    // MARK: Turns

    private func enqueue(_ turn: @escaping (_ done: @escaping () -> Void) -> Void) {
        queue.async {
            self.turns.append(turn)
            self.nextTurn()
        }
    }

    private func nextTurn() {
        if isBusy || turns.isEmpty { return }
        isBusy = true
        turns.removeFirst()(
            once {
                self.queue.async {
                    self.isBusy = false
                    self.nextTurn()
                }
            })
    }

    private func tell(_ event: CarillonEvent) {
        callbacks.async { self.onEvent(event) }
    }
}
