import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// Runs work after a time, in milliseconds, and returns a function that cancels it. It may run on any thread.
public typealias CarillonSchedule = (_ afterMs: Double, _ work: @escaping () -> Void) -> () -> Void

/// The answer to a POST. `retryAfterS`: its header `Retry-After`.
public struct CarillonHttpAnswer {
    public let status: Int
    public let retryAfterS: Double?
    public let body: Data

    public init(status: Int, retryAfterS: Double?, body: Data) {
        self.status = status
        self.retryAfterS = retryAfterS
        self.body = body
    }
}

/// Posts bodies of JSON. The default one uses URLSession, follows no redirect, and keeps no cookies and no cache.
public protocol CarillonTransport: AnyObject {
    /// Calls back once, on any thread, and returns a function that gives the request up.
    func post(_ body: Data, to url: URL, _ completion: @escaping (Result<CarillonHttpAnswer, Error>) -> Void) -> () -> Void
}

/// The clock of phones. It stands still while iOS suspends the app.
func scheduleByClock(_ afterMs: Double, _ work: @escaping () -> Void) -> () -> Void {
    let item = DispatchWorkItem(block: work)
    DispatchQueue.global().asyncAfter(deadline: .now() + afterMs / 1000, execute: item)
    return item.cancel
}

/// Lets the first of several calls pass, whichever thread it comes from.
final class First: @unchecked Sendable {
    private let lock = NSLock()
    private var isTaken = false

    func take() -> Bool {
        lock.lock()
        defer { lock.unlock() }
        if isTaken { return false }
        isTaken = true
        return true
    }
}

/// Returns a function that does the work once.
func once(_ work: @escaping () -> Void) -> () -> Void {
    let first = First()
    return { if first.take() { work() } }
}

/// Sends frames, each with its deadline. Answers come on the queue.
final class FrameSender {
    private static let deadlineMs = 10_000.0

    private let url: URL
    private let transport: CarillonTransport
    private let schedule: CarillonSchedule
    private let queue: DispatchQueue

    init(_ url: URL, _ transport: CarillonTransport, _ schedule: @escaping CarillonSchedule, _ queue: DispatchQueue) {
        self.url = url
        self.transport = transport
        self.schedule = schedule
        self.queue = queue
    }

    /// Sends a frame with the fields of an identity. Call it on the queue.
    func send(_ frame: Frame, as fields: Frame, _ then: @escaping (Result<Answer, CarillonError>) -> Void) {
        let whole = frame.merging(fields) { own, _ in own }
        guard let body = try? JSONSerialization.data(withJSONObject: whole) else {
            return then(.failure(.refused(code: 400, description: "the request is no JSON")))
        }
        let first = First()
        let queue = self.queue
        let task = Task()
        let cancelTimer = schedule(FrameSender.deadlineMs) {
            queue.async {
                if first.take() { then(.failure(.deadline)) }
                task.cancel()
            }
        }
        task.cancel = transport.post(body, to: url) { result in
            queue.async {
                cancelTimer()
                if first.take() { then(FrameSender.answer(result)) }
            }
        }
    }

    /// The function that gives a request up; used on the queue alone.
    private final class Task: @unchecked Sendable {
        var cancel = {}
    }

    private static func answer(_ result: Result<CarillonHttpAnswer, Error>) -> Result<Answer, CarillonError> {
        do {
            return .success(try Answer(try result.get()))
        } catch let error as CarillonError {
            return .failure(error)
        } catch {
            return .failure(.unavailable("no answer: \(error.localizedDescription)"))
        }
    }
}

/// Posts by a URLSession of its own.
final class SessionTransport: NSObject, CarillonTransport, URLSessionDataDelegate, @unchecked Sendable {
    private struct Call {
        var body = Data()
        let completion: (Result<CarillonHttpAnswer, Error>) -> Void
    }

    private static let largestAnswer = 1 << 20

    private let lock = NSLock()
    private var calls: [Int: Call] = [:]
    private lazy var session: URLSession = {
        let configuration = URLSessionConfiguration.ephemeral
        configuration.httpShouldSetCookies = false
        configuration.httpCookieAcceptPolicy = .never
        configuration.urlCache = nil
        configuration.requestCachePolicy = .reloadIgnoringLocalCacheData
        configuration.timeoutIntervalForRequest = 30
        return URLSession(configuration: configuration, delegate: self, delegateQueue: nil)
    }()

    func post(_ body: Data, to url: URL, _ completion: @escaping (Result<CarillonHttpAnswer, Error>) -> Void) -> () -> Void {
        var request = URLRequest(url: url)
        request.httpMethod = "POST"
        request.httpBody = body
        request.setValue("application/json", forHTTPHeaderField: "Content-Type")
        lock.lock()
        let task = session.dataTask(with: request)
        calls[task.taskIdentifier] = Call(completion: completion)
        lock.unlock()
        task.resume()
        return task.cancel
    }

    func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
        lock.lock()
        calls[dataTask.taskIdentifier]?.body.append(data)
        let isTooLarge = (calls[dataTask.taskIdentifier]?.body.count ?? 0) > SessionTransport.largestAnswer
        lock.unlock()
        if isTooLarge { dataTask.cancel() }
    }

    func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: Error?) {
        lock.lock()
        let call = calls.removeValue(forKey: task.taskIdentifier)
        lock.unlock()
        guard let call = call else { return }
        guard error == nil, let response = task.response as? HTTPURLResponse else {
            return call.completion(.failure(error ?? URLError(.badServerResponse)))
        }
        let retryAfterS = response.value(forHTTPHeaderField: "Retry-After").flatMap(Double.init)
        call.completion(.success(CarillonHttpAnswer(status: response.statusCode, retryAfterS: retryAfterS, body: call.body)))
    }

    /// The body has the device's key, which no other address may get.
    func urlSession(
        _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
        newRequest request: URLRequest, completionHandler: @escaping (URLRequest?) -> Void
    ) {
        completionHandler(nil)
    }
}
