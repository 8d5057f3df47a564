package dev.carillon.device

/** Deadline of a connection, a welcome, an answer and a pong. */
internal const val ANSWER_MS = 10_000L

/** Deadline of the app's listener; the gateway waits 60 s for an acknowledgement. */
internal const val CALLBACK_MS = 30_000L
internal const val CLOSE_MS = 2_000L
private const val FIRST_RETRY_MS = 200.0
private const val MAX_RETRY_MS = 30_000.0

/** Upper bound of the delay that a goodbye requests. */
private const val MAX_REQUESTED_RETRY_MS = 86_400_000L

/**
 * Runs something later. The default is a thread of the device, which sleeps when the processor does: on Android, where
 * a heartbeat must wake the phone, implement it by alarms.
 */
public interface Timers {
    /** Runs `work`, which never blocks, after the delay and on any thread, but not within this call; unless it is cancelled before. */
    public fun schedule(delayMs: Long, work: Runnable): Timer

    public fun interface Timer {
        /** Without effect once the work has begun. */
        public fun cancel()
    }
}

/**
 * Returns the delay before the next attempt: the goodbye's, else exponential back-off with full jitter. `failures` counts
 * the failed attempts in a row; `chance` lies in [0, 1).
 */
internal fun retryMs(requestedMs: Any?, failures: Int, chance: Double): Long {
    if (requestedMs is Number && requestedMs.toDouble() > 0) return requestedMs.toLong().coerceIn(1, MAX_REQUESTED_RETRY_MS)
    return Math.round(chance * minOf(MAX_RETRY_MS, FIRST_RETRY_MS * (1L shl minOf(failures, 30))))
}
