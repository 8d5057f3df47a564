package dev.carillon.device

import java.util.concurrent.Executor
import java.util.concurrent.atomic.AtomicBoolean

/** Frames that may wait when a push comes. */
private const val MAX_QUEUED = 1000

/** How many more may wait when an event comes, so that the app learns of connections while pushes wait. */
private const val MAX_QUEUED_EVENTS = 100

/** How long a handled push waits for others that are saved with it, while the app handles the next one. */
private const val TOGETHER_MS = 1_000L

/**
 * The queue of pushes and events for the app: each push is handled once and in order, then saved, then acknowledged.
 *
 * Used by the device's thread alone, which `loop` runs things on; the listener is called by `callbacks`.
 */
internal class Inbox(
    private val state: DeviceState,
    private val listener: DeviceListener,
    private val callbacks: Executor,
    private val loop: Executor,
    private val timers: Timers,
    private val device: Owner,
) {
    interface Owner {
        /** Writes the state; false: the storage failed. */
        fun save(): Boolean

        /** The app has had the event. */
        fun handled(event: DeviceEvent)

        /** Acknowledges these pushes, which were handled and saved, and those of `DeviceState.acks`. */
        fun acknowledge(msgids: List<Long>)
    }

    private class Item(val push: Push?, val event: DeviceEvent?, val isVendors: Boolean = false)

    private val queue = ArrayDeque<Item>()
    private val waiting = HashSet<Long>()
    private val handled = ArrayList<Item>()
    private var calling: Call? = null
    private var together: Timers.Timer? = null
    private val whenEmpty = ArrayList<() -> Unit>()

    fun put(event: DeviceEvent) {
        if (queue.size < MAX_QUEUED + MAX_QUEUED_EVENTS) queue.add(Item(null, event))
        next()
    }

    /** Adds a push, unless it waits already. False: the queue is full, and the push is dropped. */
    fun put(push: Push, isVendors: Boolean = false): Boolean {
        if (push.msgid in waiting) return true
        if (queue.size >= MAX_QUEUED) return false
        queue.add(Item(push, null, isVendors))
        waiting.add(push.msgid)
        next()
        return true
    }

    /** Runs `work` once every push and event was handled, and every handled push saved and acknowledged. */
    fun whenEmpty(work: () -> Unit) {
        whenEmpty.add(work)
        next()
    }

    private fun next() {
        while (calling == null) {
            val item = queue.removeFirstOrNull() ?: break
            val msgid = item.push?.msgid
            if (msgid != null) waiting.remove(msgid)
            if (msgid != null && state.has(msgid)) handled.add(item) else Call(item).begin()
        }
        if (calling != null) return
        acknowledge()
        while (calling == null && queue.isEmpty() && whenEmpty.isNotEmpty()) whenEmpty.removeAt(0)()
    }

    /** Saves and acknowledges all handled pushes together; what cannot be saved is sent again later. */
    private fun acknowledge() {
        together?.cancel()
        together = null
        if (handled.isEmpty()) return
        val (vendors, sent) = handled.partition { it.isVendors }
        vendors.mapNotNull { it.push?.msgid }.forEach(state::addAck)
        handled.clear()
        if (device.save()) device.acknowledge(sent.mapNotNull { it.push?.msgid })
    }

    /** A call of the listener, which ends once: by `done`, by its return (an event), or by its deadline. */
    private inner class Call(private val item: Item) : Done {
        private val isDone = AtomicBoolean()
        private lateinit var deadline: Timers.Timer

        fun begin() {
            calling = this
            deadline = timers.schedule(CALLBACK_MS) { end(false, "it took over ${CALLBACK_MS / 1000} s") }
            callbacks.execute {
                try {
                    if (item.push != null) {
                        listener.onPush(item.push, this)
                    } else {
                        item.event?.let(listener::onEvent)
                        handled()
                    }
                } catch (error: Exception) {
                    failed(error)
                }
                // A push that is handled later does not keep those waiting that were handled before it.
                loop.execute { if (calling === this) acknowledge() }
            }
        }

        override fun handled() = end(true, null)

        override fun failed(error: Throwable) = end(false, error)

        private fun end(isHandled: Boolean, error: Any?) {
            if (!isDone.compareAndSet(false, true)) return
            if (!isHandled) warn("the app failed on ${item.push ?: item.event}: $error")
            loop.execute {
                deadline.cancel()
                calling = null
                val push = item.push
                if (isHandled && push != null) {
                    state.add(push.msgid)
                    handled.add(item)
                    if (together == null) together = timers.schedule(TOGETHER_MS) { loop.execute(::acknowledge) }
                }
                item.event?.let(device::handled)
                next()
            }
        }
    }
}
