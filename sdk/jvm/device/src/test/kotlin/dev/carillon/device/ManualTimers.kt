package dev.carillon.device

import java.util.concurrent.Executors

/** Waits that end when a test orders it, or when the clock that it moves is past their end; their work is run then. */
internal class ManualTimers : Timers {
    private class Wait(val ms: Long, val endMs: Long, val work: Runnable)

    private val later = Executors.newSingleThreadExecutor { Thread(it).apply { isDaemon = true } }
    private val pending = ArrayList<Wait>()
    private val elapsed = ArrayList<Long>()
    private var nowMs = 0L

    override fun schedule(delayMs: Long, work: Runnable): Timers.Timer {
        val wait: Wait
        val isOver: Boolean
        synchronized(this) {
            wait = Wait(delayMs, nowMs + delayMs, work)
            isOver = elapsed.remove(delayMs)
            if (!isOver) pending.add(wait)
        }
        if (isOver) later.execute(work) // a timer never runs within this call
        return Timers.Timer { synchronized(this) { pending.remove(wait) } }
    }

    /** Ends a wait of that length, at once or when it begins. */
    fun elapse(ms: Long) {
        val ended = synchronized(this) {
            pending.firstOrNull { it.ms == ms }.also { if (it == null) elapsed.add(ms) else pending.remove(it) }
        }
        ended?.work?.run()
    }

    /** Moves the clock; ends the waits that end by then. */
    fun move(ms: Long) {
        val ended = synchronized(this) {
            nowMs += ms
            pending.filter { it.endMs <= nowMs }.also(pending::removeAll)
        }
        ended.forEach { it.work.run() }
    }
}
