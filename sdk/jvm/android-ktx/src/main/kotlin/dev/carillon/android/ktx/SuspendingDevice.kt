package dev.carillon.android.ktx

import dev.carillon.device.Answer
import dev.carillon.device.CarillonDevice
import dev.carillon.device.KnownDevice
import dev.carillon.device.ProofSource
import kotlin.coroutines.cancellation.CancellationException
import kotlin.coroutines.resume
import kotlin.coroutines.resumeWithException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.launch
import kotlinx.coroutines.suspendCancellableCoroutine

/** The device's requests as functions that suspend until the answer, and throw its error. */
public val CarillonDevice.suspending: SuspendingDevice get() = SuspendingDevice(this)

/**
 * The requests of a CarillonDevice under their names. Each throws RefusedException, UnavailableException or
 * DeadlineException where it fails. A request that was sent is not taken back when its coroutine is cancelled.
 */
public class SuspendingDevice internal constructor(private val device: CarillonDevice) {
    /** Returns when the device is connected. EndedException, or UnavailableException if the app has stopped it. */
    public suspend fun connected(): Unit = answer { device.whenConnected(it) }

    public suspend fun setAlias(alias: String, proof: String? = null): Unit = answer { device.setAlias(alias, proof, it) }

    /** Sets the alias with a proof that is fetched for each attempt, three in all. */
    public suspend fun setAlias(alias: String, proof: suspend () -> String): Unit =
        proving(proof) { source, answer -> device.setAlias(alias, source, answer) }

    public suspend fun clearAlias(): Unit = answer { device.clearAlias(it) }

    public suspend fun addTags(tags: Collection<Int>, proof: String? = null): Unit = answer { device.addTags(tags, proof, it) }

    public suspend fun addTags(tags: Collection<Int>, proof: suspend () -> String): Unit =
        proving(proof) { source, answer -> device.addTags(tags, source, answer) }

    public suspend fun removeTags(tags: Collection<Int>): Unit = answer { device.removeTags(tags, it) }

    public suspend fun addStags(stags: Collection<String>, proof: String? = null): Unit =
        answer { device.addStags(stags, proof, it) }

    public suspend fun addStags(stags: Collection<String>, proof: suspend () -> String): Unit =
        proving(proof) { source, answer -> device.addStags(stags, source, answer) }

    public suspend fun removeStags(stags: Collection<String>): Unit = answer { device.removeStags(stags, it) }

    public suspend fun setAttributes(attributes: Map<String, String>): Unit = answer { device.setAttributes(attributes, it) }

    public suspend fun setAddress(channel: String, token: String, keys: Map<String, String>? = null): Unit =
        answer { device.setAddress(channel, token, keys, it) }

    public suspend fun clearAddress(channel: String): Unit = answer { device.clearAddress(channel, it) }

    public suspend fun getDevice(): KnownDevice = answer { device.getDevice(it) }
}

private suspend fun <T> answer(ask: (Answer<T>) -> Unit): T = suspendCancellableCoroutine { waiting ->
    ask(Answer { value, error ->
        @Suppress("UNCHECKED_CAST") // without an error there is a value
        if (error == null) waiting.resume(value as T) else waiting.resumeWithException(error)
    })
}

/** Fetches in the scope of the request, so that a cancelled request fetches no more. */
private suspend fun proving(fetch: suspend () -> String, ask: (ProofSource, Answer<Unit>) -> Unit): Unit = coroutineScope {
    val source = source(this, fetch)
    answer<Unit> { ask(source, it) }
}

private fun source(scope: CoroutineScope, fetch: suspend () -> String) = ProofSource { proof ->
    scope.launch {
        try {
            proof.onAnswer(fetch(), null)
        } catch (error: CancellationException) {
            throw error
        } catch (error: Exception) {
            proof.onAnswer(null, error)
        }
    }
}
