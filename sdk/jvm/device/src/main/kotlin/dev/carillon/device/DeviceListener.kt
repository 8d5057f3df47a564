package dev.carillon.device

/** Receives a device's pushes and events, one at a time and in their order, from the thread of the callbacks. */
public interface DeviceListener {
    /**
     * Handles a push, and says so by `done`, here or later on any thread. The push is then saved as handled, and
     * acknowledged. A push on which this throws, that `failed`, or that takes over 30 s, is sent again later.
     */
    public fun onPush(push: Push, done: Done)

    public fun onEvent(event: DeviceEvent) {}
}

/** Ends the handling of a push; only the first call counts. */
public interface Done {
    public fun handled()

    public fun failed(error: Throwable)
}

/** Receives the answer to a request: a value, or the error for which there is none. */
public fun interface Answer<in T> {
    public fun onAnswer(value: T?, error: Exception?)
}

/** Fetches a proof of the app's server for the user who has logged in; `proof` takes it, here or later on any thread. */
public fun interface ProofSource {
    public fun fetch(proof: Answer<String>)
}

/** An event of a device; `toString` describes it for logs, and holds no secret. */
public sealed class DeviceEvent {
    /** The device is connected. If it `isNew`, set its alias and tags. */
    public class Welcome internal constructor(internal val frame: Map<String, Any?>) : DeviceEvent() {
        /** Names the device to app servers; it is not secret. */
        public val token: String = frame["token"] as String

        /** Whether the device was registered just now. */
        public val isNew: Boolean = frame["new"] == true

        /** The agreed heartbeat, in seconds. */
        public val heartbeatS: Long = frame["heartbeat"] as Long

        /** Attributes of the configuration that were not stored, each with the reason. */
        public val ignored: List<String> = (frame["ignored"] as? List<*>).orEmpty().filterIsInstance<String>()

        override fun toString(): String = "welcome, heartbeat $heartbeatS s"
    }

    /** The gateway ends the connection. */
    public class Goodbye internal constructor(internal val frame: Map<String, Any?>) : DeviceEvent() {
        public val reason: String = frame["reason"] as String

        override fun toString(): String = "goodbye: $reason"
    }

    /** An error that answers no request, such as one to a report. */
    public class Error internal constructor(internal val frame: Map<String, Any?>) : DeviceEvent() {
        public val code: Int = codeOf(frame)
        public val description: String = descriptionOf(frame)

        override fun toString(): String = "error $code: $description"
    }

    /** The connection has ended; the device connects again after `retryMs`. */
    public class Disconnected internal constructor(public val reason: String, public val retryMs: Long) : DeviceEvent() {
        override fun toString(): String = "disconnected: $reason; again in $retryMs ms"
    }

    /**
     * The device has ended and does not reconnect. `reason` is that of the final goodbye (`unauthorized`, `replaced` or
     * `protocol`), or `storage`: the stored state could not be read. `message` says what that means.
     */
    public class Ended internal constructor(public val reason: String, public val message: String) : DeviceEvent() {
        override fun toString(): String = "ended: $reason: $message"
    }
}

/** The service's record of a device. */
public class KnownDevice internal constructor(frame: Map<String, Any?>) {
    public val alias: String? = frame["alias"] as? String
    public val tags: List<Int> = (frame["tags"] as? List<*>).orEmpty().filterIsInstance<Long>().map { it.toInt() }
    public val stags: List<String> = (frame["stags"] as? List<*>).orEmpty().filterIsInstance<String>()

    /** The attributes that the device reported. */
    public val attributes: Map<String, String> = (frame["device"] as? Map<*, *>).orEmpty()
        .entries.associate { (name, value) -> name.toString() to value.toString() }

    /** The channels on which the device has an address. */
    public val channels: List<String> = (frame["channels"] as? List<*>).orEmpty().filterIsInstance<String>()
}

internal fun codeOf(error: Map<String, Any?>): Int = (error["code"] as? Long)?.toInt() ?: 500

internal fun descriptionOf(error: Map<String, Any?>): String = error["desc"] as? String ?: ""
