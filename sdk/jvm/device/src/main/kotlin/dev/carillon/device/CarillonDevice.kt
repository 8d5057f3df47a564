package dev.carillon.device

import java.util.concurrent.Executor
import java.util.concurrent.Executors
import java.util.concurrent.RejectedExecutionException
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.Semaphore
import java.util.concurrent.ThreadFactory
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean
import java.util.logging.Level
import java.util.logging.Logger
import kotlin.random.Random

internal const val SUBPROTOCOL = "carillon.device.v1"

/** Message ids in one ack: a frame has 8 KiB at most. */
private const val MAX_ACKNOWLEDGED = 400

/** Turns of received frames that wait for the device's thread; the connection is not read while there are as many. */
private const val MAX_RECEIVED = 10

/** Calls of the app that wait for `start`. */
private const val MAX_EARLY = 200

private const val PROOF_ATTEMPTS = 3

/** Shortest delay before a proof is fetched again; it doubles, and chance doubles it at most. */
private const val PROOF_RETRY_MS = 3_000L

/** The codes of answers after which another proof may be accepted: it was wrong, or the device handed in too many. */
private val PROOF_REFUSED = setOf(401, 429)

/** The reasons of final goodbyes, after which a device does not reconnect, and their meaning. */
private val FINAL = mapOf(
    "unauthorized" to "the gateway does not accept this appkey, or this token with this key",
    "replaced" to "another connection of the same device took this one's place",
    "protocol" to "the gateway did not understand this device",
)

/**
 * What a device says of itself. `url` is that of the gateway, ws:// or wss://. `attributes`: any of region, carrier,
 * channel, sdk_version, brand, model, resolution, os_version and app_version. `heartbeatS` is a request; the gateway
 * decides.
 */
public class DeviceConfig @JvmOverloads constructor(
    public val url: String,
    public val appkey: String,
    public val attributes: Map<String, String> = emptyMap(),
    public val heartbeatS: Int? = null,
) {
    init {
        GatewayAddress(url)
    }
}

/**
 * A device, which stays connected from `start` until `stop` or a final goodbye, gives each push to the app once, and
 * acknowledges it.
 *
 * Before `start` nothing is read, stored or connected, and no thread runs; reports and pushes of vendors wait for it in
 * memory. After its end a device is not started again: make another one. Every function may be called from any thread
 * and returns at once; answers come on the thread of the callbacks, from `callbacks`: a thread of the device's own by
 * default, on Android usually the main thread.
 */
public class CarillonDevice @JvmOverloads constructor(
    private val config: DeviceConfig,
    storage: Storage,
    listener: DeviceListener,
    private val connector: Connector = WebSocketConnector(),
    timers: Timers? = null,
    callbacks: Executor? = null,
    private val random: () -> Double = Random.Default::nextDouble,
) {
    private enum class Phase { NEW, STARTED, STOPPING, OVER }

    private val lock = Any()

    // Guarded by the lock.
    private var phase = Phase.NEW
    private var threads: DeviceThreads? = null
    private val early = ArrayList<() -> Unit>()
    private val waiting = ArrayList<Answer<Unit>>()

    // Executors: the device's thread, on which alone everything below is used, and that of the listener.
    private val loop = Executor { onLoop(it) }
    private val callbacks = callbacks ?: Executor { synchronized(lock) { threads }?.call(it) ?: it.run() }
    private val timers = timers ?: object : Timers {
        override fun schedule(delayMs: Long, work: Runnable): Timers.Timer =
            synchronized(lock) { threads }?.schedule(delayMs, work) ?: Timers.Timer {}
    }
    private val state = DeviceState(storage)
    private val inbox = Inbox(state, listener, this.callbacks, loop, this.timers, Owner())
    private val pending = HashMap<Long, Pending>()
    private val afterStop = ArrayList<Runnable>()
    private var lastId = 0L
    private var attempt: Attempt? = null
    private var whenClosed: (() -> Unit)? = null
    private var failures = 0
    private var retry: Timers.Timer? = null
    private var isRetryOurs = false
    private var isSaving = false

    /** The token that names the device to app servers; null before the first welcome and before `start`. */
    @Volatile
    public var token: String? = null
        private set

    /** Reads the stored state and stays connected from now on. Without effect after the first call. */
    public fun start() {
        synchronized(lock) {
            if (phase != Phase.NEW) return
            phase = Phase.STARTED
            val reported = early.toList().also { early.clear() }
            val begin = Runnable {
                if (load()) {
                    reported.forEach { it() }
                    connect()
                }
            }
            threads = DeviceThreads().also { it.run(begin) } // the first turn: reports of other threads come after it
        }
    }

    /**
     * Acknowledges the handled pushes, then disconnects and does not reconnect. `stopped` runs, on the device's thread,
     * when nothing of the device runs any more: after six seconds at most, or 30 s after a final goodbye.
     */
    @JvmOverloads
    public fun stop(stopped: Runnable = Runnable {}) {
        synchronized(lock) {
            if (phase == Phase.NEW) phase = Phase.OVER
            early.clear()
        }
        val isRunning = onLoop {
            afterStop.add(stopped)
            if (stopping()) within(CLOSE_MS, inbox::whenEmpty) { disconnect() }
        }
        if (isRunning) return
        answerWaiting(UnavailableException("the device was stopped"))
        stopped.run()
    }

    /**
     * Sets the alias. `proof` shows that it is the user's: a JWT of the app's server. Every request answers with a
     * RefusedException, an UnavailableException or a DeadlineException where it fails.
     */
    @JvmOverloads
    public fun setAlias(alias: String, proof: String? = null, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("set_alias", answer, "alias" to alias, "proof" to proof)

    /**
     * Sets the alias with a proof that is fetched for each attempt: after one that is refused, as one that has expired
     * is, another one is fetched with growing delays, three in all. An error of the source ends the request.
     */
    @JvmOverloads
    public fun setAlias(alias: String, proof: ProofSource, answer: Answer<Unit> = NO_ANSWER): Unit =
        prove("set_alias", proof, answer, "alias" to alias)

    @JvmOverloads
    public fun clearAlias(answer: Answer<Unit> = NO_ANSWER): Unit = request("clear_alias", answer)

    /** Adds tags; `proof`, as for `setAlias`, for those that address one person. */
    @JvmOverloads
    public fun addTags(tags: Collection<Int>, proof: String? = null, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("add_tags", answer, "tags" to tags, "proof" to proof)

    @JvmOverloads
    public fun addTags(tags: Collection<Int>, proof: ProofSource, answer: Answer<Unit> = NO_ANSWER): Unit =
        prove("add_tags", proof, answer, "tags" to tags)

    @JvmOverloads
    public fun removeTags(tags: Collection<Int>, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("remove_tags", answer, "tags" to tags)

    /** Adds string tags; `proof`, as for `setAlias`, for those that address one person. */
    @JvmOverloads
    public fun addStags(stags: Collection<String>, proof: String? = null, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("add_stags", answer, "stags" to stags, "proof" to proof)

    @JvmOverloads
    public fun addStags(stags: Collection<String>, proof: ProofSource, answer: Answer<Unit> = NO_ANSWER): Unit =
        prove("add_stags", proof, answer, "stags" to stags)

    @JvmOverloads
    public fun removeStags(stags: Collection<String>, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("remove_stags", answer, "stags" to stags)

    @JvmOverloads
    public fun setAttributes(attributes: Map<String, String>, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("set_attributes", answer, "device" to attributes)

    /**
     * Sets where a channel, such as "fcm", reaches the device while it has no connection: the token that the vendor's
     * SDK returns. Call it at each start and whenever the token changes; a known one changes nothing. `keys`: p256dh and
     * auth of a push subscription, for "webpush" alone.
     */
    @JvmOverloads
    public fun setAddress(
        channel: String,
        token: String,
        keys: Map<String, String>? = null,
        answer: Answer<Unit> = NO_ANSWER,
    ): Unit = request("set_address", answer, "channel" to channel, "address" to token, "keys" to keys)

    /** Removes the address, as when the user turns notifications off. */
    @JvmOverloads
    public fun clearAddress(channel: String, answer: Answer<Unit> = NO_ANSWER): Unit =
        request("clear_address", answer, "channel" to channel)

    /** Asks what the service knows of the device. */
    public fun getDevice(answer: Answer<KnownDevice>) {
        send(mapOf("type" to "get_device")) { frame, error -> give(answer, frame?.let(::KnownDevice), error) }
    }

    /**
     * Reports what the user did with a notification: "shown", "clicked" or "dismissed".
     *
     * A report is stored, sent at once, and sent over each later connection until the service confirms that it will not
     * be lost, also after the end of the process.
     */
    public fun report(event: String, msgid: Long): Unit = report(mapOf("type" to "report", "event" to event, "msgid" to msgid))

    /** Reports how the app is used, "open", "login" or "logout", as `report` does. */
    public fun activity(event: String): Unit = report(mapOf("type" to "activity", "event" to event))

    /**
     * Takes a message that a vendor's SDK has handed to the app, with its data and, if it was a notification, its title
     * and content. False: it is not from Carillon. A push goes to the listener, unless the device has had it before, and
     * is acknowledged over the next connection.
     */
    @JvmOverloads
    public fun onMessage(data: Map<String, String>, title: String? = null, content: String? = null): Boolean {
        val push = Push.ofVendor(data, title, content) ?: return false
        whenStarted { if (!inbox.put(push, isVendors = true)) warn("too many pushes are waiting; $push is given up") }
        return true
    }

    /**
     * Looks at once whether the connection still is one, or connects now if the device waits: for an app that learns that
     * the network has changed. A delay that the gateway has asked for is kept.
     */
    public fun checkConnection() {
        onLoop {
            attempt?.ping()
            if (isRetryOurs) retry?.let {
                it.cancel()
                connect()
            }
        }
    }

    /**
     * Answers when the device is connected and the listener has had the welcome, at once if that is so already. Where the
     * device ends before, the answer is an EndedException, or an UnavailableException if the app has stopped it.
     */
    public fun whenConnected(answer: Answer<Unit>) {
        val isOver = synchronized(lock) { (phase == Phase.OVER).also { if (!it) waiting.add(answer) } }
        if (isOver) give(answer, null, UnavailableException("the device does not run"))
        onLoop { if (attempt?.isKnown == true) answerWaiting(null) }
    }

    private fun answerWaiting(error: Exception?) {
        val answered = synchronized(lock) { waiting.toList().also { waiting.clear() } }
        answered.forEach { give(it, Unit.takeIf { error == null }, error) }
    }

    // Requests and reports.

    private fun request(type: String, answer: Answer<Unit>, vararg fields: Pair<String, Any?>) {
        send(mapOf("type" to type, *fields)) { _, error -> give(answer, Unit.takeIf { error == null }, error) }
    }

    /** Sends a request with a new id; `answered` gets the ok frame that answers it, or the error, on the device's thread. */
    private fun send(frame: Map<String, Any?>, answered: (Map<String, Any?>?, Exception?) -> Unit) {
        val isRunning = onLoop {
            val open = attempt?.takeIf { it.isWelcomed }
            if (open == null) return@onLoop answered(null, UnavailableException("the device is not connected"))
            val id = ++lastId
            pending[id] = Pending(answered, timers.schedule(ANSWER_MS) {
                val late = DeadlineException("no answer to ${frame["type"]} within ${ANSWER_MS / 1000} s")
                onLoop { pending.remove(id)?.answer(null, late) }
            })
            open.send(frame + ("id" to id))
        }
        if (!isRunning) answered(null, UnavailableException("the device does not run"))
    }

    private class Pending(val answered: (Map<String, Any?>?, Exception?) -> Unit, val deadline: Timers.Timer) {
        fun answer(frame: Map<String, Any?>?, error: Exception?) {
            deadline.cancel()
            answered(frame, error)
        }
    }

    /** Sends a request with a proof, which is fetched again where the gateway refuses it. */
    private fun prove(
        type: String,
        source: ProofSource,
        answer: Answer<Unit>,
        field: Pair<String, Any>,
        attempts: Int = 1,
    ): Unit = fetch(source) { proof, failed ->
        if (proof == null) return@fetch give(answer, null, failed ?: IllegalArgumentException("the source gave no proof"))
        send(mapOf("type" to type, field, "proof" to proof)) { _, error ->
            if (error is RefusedException && error.code in PROOF_REFUSED && attempts < PROOF_ATTEMPTS) {
                val delayMs = (PROOF_RETRY_MS shl attempts - 1) * (1 + random())
                timers.schedule(delayMs.toLong()) { prove(type, source, answer, field, attempts + 1) }
            } else {
                give(answer, Unit.takeIf { error == null }, error)
            }
        }
    }

    private fun fetch(source: ProofSource, fetched: (String?, Exception?) -> Unit) {
        val isDone = AtomicBoolean()
        fun once(proof: String?, error: Exception?) {
            if (isDone.compareAndSet(false, true)) fetched(proof, error)
        }
        val deadline = timers.schedule(CALLBACK_MS) {
            once(null, DeadlineException("no proof was fetched within ${CALLBACK_MS / 1000} s"))
        }
        callbacks.execute {
            try {
                source.fetch { proof, error ->
                    deadline.cancel()
                    once(proof, error)
                }
            } catch (error: Exception) {
                deadline.cancel()
                once(null, error)
            }
        }
    }

    private fun <T> give(answer: Answer<T>, value: T?, error: Exception?) = callbacks.execute {
        try {
            answer.onAnswer(value, error)
        } catch (failure: Exception) {
            warn("the app failed on an answer: $failure")
        }
    }

    private fun report(frame: Map<String, Any?>) = whenStarted {
        val id = ++lastId
        val report = frame + ("id" to id)
        state.addReport(id, report)
        attempt?.takeIf { it.isWelcomed }?.send(report)
        saveSoon()
    }

    /** Runs something on the device's thread, after `start` if that has not been called yet. */
    private fun whenStarted(work: () -> Unit) {
        val isEarly = synchronized(lock) { (phase == Phase.NEW && early.size < MAX_EARLY).also { if (it) early.add(work) } }
        if (!isEarly && !onLoop(work)) warn("the device does not run; what the app reports is given up")
    }

    // The state.

    private fun save(): Boolean = try {
        state.save()
        true
    } catch (error: Exception) {
        warn("the state of the device could not be saved: $error")
        false
    }

    /** Saves once for all that changes in this turn. */
    private fun saveSoon() {
        if (isSaving) return
        isSaving = true
        onLoop {
            isSaving = false
            save()
        }
    }

    private inner class Owner : Inbox.Owner {
        override fun save(): Boolean = this@CarillonDevice.save()

        override fun handled(event: DeviceEvent) {
            if (event is DeviceEvent.Ended) answerWaiting(EndedException(event.reason, event.message))
            if (event is DeviceEvent.Welcome && attempt?.isWelcomed == true) {
                attempt?.isKnown = true
                answerWaiting(null)
            }
        }

        override fun acknowledge(msgids: List<Long>) {
            attempt?.takeIf { it.isWelcomed }?.acknowledge(msgids)
        }
    }

    // The end.

    /** Returns true for the first caller, who then ends the device. */
    private fun stopping(): Boolean =
        synchronized(lock) { (phase == Phase.STARTED).also { if (it) phase = Phase.STOPPING } }

    private fun disconnect() {
        retry?.cancel()
        retry = null
        within(CLOSE_MS, { closed -> attempt?.takeIf { it.isWelcomed }?.close(closed) ?: closed() }) {
            attempt?.over()
            within(CLOSE_MS, inbox::whenEmpty) { finish() } // pushes that came meanwhile were shown, so they are saved
        }
    }

    private fun end(reason: String, meaning: String) {
        if (!stopping()) return
        inbox.put(DeviceEvent.Ended(reason, meaning))
        within(CALLBACK_MS, inbox::whenEmpty) { finish() }
    }

    private fun finish() {
        val over = synchronized(lock) {
            phase = Phase.OVER
            threads
        }
        over?.run { // after the turns that wait
            if (isSaving) save()
            answerWaiting(UnavailableException("the device was stopped"))
            synchronized(lock) { threads = null }
            over.shutDown()
            afterStop.forEach(Runnable::run)
        }
    }

    /** Runs `next` once, when `wait` calls back, or after some time at most. */
    private fun within(limitMs: Long, wait: (() -> Unit) -> Unit, next: () -> Unit) {
        var isOver = false
        fun once() {
            if (isOver) return
            isOver = true
            next()
        }
        val limit = timers.schedule(limitMs) { onLoop(::once) }
        wait {
            limit.cancel()
            once()
        }
    }

    /** Runs something on the device's thread, later; false: the device does not run. */
    private fun onLoop(work: Runnable): Boolean =
        synchronized(lock) { threads.takeIf { phase != Phase.OVER } }?.run(work) ?: false

    // The connection.

    private fun load(): Boolean {
        try {
            state.load()
        } catch (error: Exception) {
            end("storage", error.message ?: error.toString())
            return false
        }
        token = state.token
        lastId = state.reports.keys.maxOrNull() ?: 0
        return true
    }

    private fun connect() {
        retry = null
        if (synchronized(lock) { phase } == Phase.STARTED) Attempt().open()
    }

    /** One connection, from opening to its end. */
    private inner class Attempt : Connector.Receiver {
        private var connection: Connection? = null
        private var timer: Timers.Timer? = null
        private var heartbeatMs = 0L
        private var isPinged = false
        private val room = Semaphore(MAX_RECEIVED)
        var isWelcomed = false
            private set

        /** Whether the app has had the welcome. */
        var isKnown = false

        fun open() {
            attempt = this
            deadline()
            connection = try {
                connector.open(config.url, SUBPROTOCOL, this)
            } catch (error: Exception) {
                return lost(error.message ?: error.toString())
            }
        }

        override fun onOpen() = run {
            deadline()
            val identity = if (state.token == null) emptyMap() else mapOf("token" to state.token, "key" to state.key)
            val wishes = mapOf("device" to config.attributes.ifEmpty { null }, "heartbeat" to config.heartbeatS)
            send(mapOf("type" to "hello", "appkey" to config.appkey) + identity + wishes)
        }

        override fun onTexts(texts: List<String>) {
            room.acquire()
            onLoop {
                room.release()
                for (text in texts) if (attempt === this) received(decodeFrame(text) ?: emptyMap())
            }
        }

        override fun onClosed(reason: String) = run { lost(reason) }

        /** Runs on the device's thread what counts only while this is the current connection. */
        private fun run(work: () -> Unit) {
            onLoop { if (attempt === this) work() }
        }

        fun send(frame: Map<String, Any?>) {
            connection?.send(writeJson(frame.filterValues { it != null }))
        }

        fun acknowledge(msgids: List<Long>) {
            (msgids + state.acks).chunked(MAX_ACKNOWLEDGED) { send(mapOf("type" to "ack", "msgids" to it.toList())) }
            if (state.acks.isEmpty()) return
            state.acks.clear()
            saveSoon()
        }

        /** Closes with the closing handshake; `closed` is called at the connection's end. */
        fun close(closed: () -> Unit) {
            whenClosed = closed
            connection?.close()
        }

        /** Asks for a sign of life; any frame is one. */
        fun ping() {
            if (!isWelcomed || isPinged) return
            isPinged = true
            send(mapOf("type" to "ping"))
            deadline()
        }

        private fun deadline() = after(ANSWER_MS) { lost("no answer within ${ANSWER_MS / 1000} s") }

        /** Replaces the timer of this connection. */
        private fun after(delayMs: Long, work: () -> Unit) {
            timer?.cancel()
            timer = timers.schedule(delayMs) { run(work) }
        }

        private fun received(frame: Map<String, Any?>) {
            if (isPinged) {
                isPinged = false
                after(heartbeatMs, ::ping)
            }
            val id = frame["id"]
            when (frame["type"]) {
                "goodbye" -> goodbye(frame)
                "welcome" -> if (!isWelcomed) welcome(frame)
                "error" -> if (id == null || id is Long) refused(id as Long?, frame)
                "ok" -> if (id is Long) answered(id, frame)
                "push" -> Push.of(frame)?.let { if (isWelcomed) push(it) }
            }
        }

        private fun welcome(frame: Map<String, Any?>) {
            val token = frame["token"]
            val key = frame["key"]
            val heartbeatS = frame["heartbeat"]
            if (token !is String || key !is String || heartbeatS !is Long || heartbeatS !in 1..Int.MAX_VALUE) return
            state.token = token
            state.key = key
            if (!save()) return lost("the identity could not be saved")
            this@CarillonDevice.token = token
            isWelcomed = true
            heartbeatMs = heartbeatS * 1000
            state.reports.values.forEach(::send)
            acknowledge(emptyList())
            after((heartbeatMs * random()).toLong(), ::ping)
            inbox.put(DeviceEvent.Welcome(frame))
        }

        private fun push(push: Push) {
            if (!inbox.put(push)) lost("too many pushes are waiting", isFailure = true)
        }

        private fun answered(id: Long, frame: Map<String, Any?>) {
            confirmed(id)
            pending.remove(id)?.answer(frame, null)
        }

        private fun refused(id: Long?, frame: Map<String, Any?>) {
            confirmed(id)
            val request = pending.remove(id) ?: return inbox.put(DeviceEvent.Error(frame))
            request.answer(null, RefusedException(codeOf(frame), descriptionOf(frame)))
        }

        private fun confirmed(id: Long?) {
            if (id != null && state.reports.remove(id) != null) saveSoon()
        }

        private fun goodbye(frame: Map<String, Any?>) {
            val reason = frame["reason"] as? String ?: return
            inbox.put(DeviceEvent.Goodbye(frame))
            val meaning = FINAL[reason] ?: return lost(reason, frame["retry_after_ms"])
            over()
            end(reason, meaning)
        }

        /** Ends this connection, and waits before the next one. */
        private fun lost(reason: String, requestedMs: Any? = null, isFailure: Boolean = !isWelcomed) {
            over()
            failures = if (isFailure) failures + 1 else 0
            if (synchronized(lock) { phase } != Phase.STARTED) return
            val delayMs = retryMs(requestedMs, failures, random())
            isRetryOurs = requestedMs !is Number || requestedMs.toDouble() <= 0
            inbox.put(DeviceEvent.Disconnected(reason, delayMs))
            retry = timers.schedule(delayMs) { onLoop { if (retry != null) connect() } }
        }

        /** Ends this connection; requests without an answer fail. */
        fun over() {
            attempt = null
            timer?.cancel()
            connection?.drop()
            room.release(MAX_RECEIVED) // its reader, if it waits, sees the end
            val unanswered = pending.values.toList()
            pending.clear()
            unanswered.forEach { it.answer(null, UnavailableException("the connection was lost")) }
            whenClosed?.invoke()
        }
    }
}

private val NO_ANSWER = Answer<Any?> { _, error -> if (error != null) warn("a request has failed: $error") }

internal fun warn(what: String): Unit = Logger.getLogger("dev.carillon.device").warning(what)

/** The threads of a device that runs: its own, which is its clock too, and one for the app if it has no other. */
private class DeviceThreads {
    private val loop = ScheduledThreadPoolExecutor(1, named("carillon-device")).apply {
        removeOnCancelPolicy = true
        executeExistingDelayedTasksAfterShutdownPolicy = false
    }
    private val callbacks = lazy { Executors.newSingleThreadExecutor(named("carillon-callbacks")) }

    /** Runs something on the device's thread, later; false: it has ended. */
    fun run(work: Runnable): Boolean = try {
        loop.execute(guarded(work))
        true
    } catch (_: RejectedExecutionException) {
        false
    }

    fun schedule(delayMs: Long, work: Runnable): Timers.Timer = try {
        val later = loop.schedule(guarded(work), delayMs, TimeUnit.MILLISECONDS)
        Timers.Timer { later.cancel(false) }
    } catch (_: RejectedExecutionException) {
        Timers.Timer {}
    }

    fun call(work: Runnable): Unit = callbacks.value.execute(work)

    fun shutDown() {
        loop.shutdown()
        if (callbacks.isInitialized()) callbacks.value.shutdown()
    }

    /** A mistake in one turn ends neither the thread nor the device. */
    private fun guarded(work: Runnable) = Runnable {
        try {
            work.run()
        } catch (error: Exception) {
            Logger.getLogger("dev.carillon.device").log(Level.SEVERE, "a mistake of the SDK", error)
        }
    }

    private fun named(name: String) = ThreadFactory { Thread(it, name).apply { isDaemon = true } }
}
