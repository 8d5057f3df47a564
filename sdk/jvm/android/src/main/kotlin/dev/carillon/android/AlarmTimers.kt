package dev.carillon.android

import android.app.AlarmManager
import android.app.PendingIntent
import android.content.BroadcastReceiver
import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.net.ConnectivityManager
import android.net.Network
import android.os.Build
import android.os.Handler
import android.os.Looper
import android.os.PowerManager
import android.os.SystemClock
import android.util.Log
import dev.carillon.device.Connection
import dev.carillon.device.Connector
import dev.carillon.device.Timers

internal const val ALARM = "dev.carillon.android.ALARM"

/** Waits from this length on, heartbeats for one, wake the phone at their end; shorter ones are deadlines and retries. */
private const val LONG_MS = 60_000L

/** A short wait whose end the phone has slept over ends this much later at most: Doze allows no alarm earlier. */
private const val LATE_MS = 540_000L

/** How long the phone stays awake after an alarm for the answer to a ping, which may take 10 s. */
private const val ANSWER_MS = 15_000L

/** How long the phone stays awake for a push to be shown, saved and acknowledged: the app may take 30 s. */
private const val HANDLING_MS = 35_000L

/**
 * Waits on the clock that goes on while the phone sleeps. While it is awake a wait ends on time; else by an alarm, which
 * Doze allows about every nine minutes.
 *
 * The alarm goes to a receiver that lives as long as the process: it starts no process that has ended.
 */
internal class AlarmTimers(private val app: Context, private val awake: Awake) : Timers {
    private class Wait(val endMs: Long, val alarmMs: Long, val work: Runnable)

    private val alarms = app.getSystemService(AlarmManager::class.java)
    private val handler = Handler(Looper.getMainLooper())
    private val tick = Runnable { endWaits() }
    private val lock = Any()

    // Guarded by the lock.
    private val waits = ArrayList<Wait>()
    private var tickMs = Long.MAX_VALUE
    private var alarmMs = Long.MAX_VALUE
    private var receiver: BroadcastReceiver? = null

    /** `woken` is called when the phone leaves Doze, also for a moment. */
    fun open(woken: () -> Unit) {
        val power = app.getSystemService(PowerManager::class.java)
        val receiver = object : BroadcastReceiver() {
            override fun onReceive(context: Context, intent: Intent) {
                if (intent.action == ALARM) alarm() else if (!power.isDeviceIdleMode) woken()
            }
        }
        val filter = IntentFilter(ALARM).apply { addAction(PowerManager.ACTION_DEVICE_IDLE_MODE_CHANGED) }
        if (Build.VERSION.SDK_INT >= 33) registerHidden(receiver, filter) else app.registerReceiver(receiver, filter)
        synchronized(lock) { this.receiver = receiver }
    }

    fun close() {
        synchronized(lock) { receiver.also { receiver = null } }?.let(app::unregisterReceiver)
        handler.removeCallbacks(tick)
        alarms.cancel(pending())
    }

    override fun schedule(delayMs: Long, work: Runnable): Timers.Timer {
        val endMs = SystemClock.elapsedRealtime() + delayMs
        val wait = Wait(endMs, if (delayMs < LONG_MS) endMs + LATE_MS else endMs, work)
        synchronized(lock) {
            waits.add(wait)
            arm()
        }
        return Timers.Timer { synchronized(lock) { waits.remove(wait) } }
    }

    private fun alarm() {
        awake.untilAnswer()
        synchronized(lock) { alarmMs = Long.MAX_VALUE }
        endWaits()
    }

    private fun endWaits() {
        val nowMs = SystemClock.elapsedRealtime()
        val ended = synchronized(lock) {
            tickMs = Long.MAX_VALUE
            waits.filter { it.endMs <= nowMs }.also {
                waits.removeAll(it)
                arm()
            }
        }
        ended.sortedBy { it.endMs }.forEach { it.work.run() }
    }

    /** Sees to it that the first wait ends. An alarm that has become too early stays: it costs less than another call. */
    private fun arm() {
        val first = waits.minOfOrNull { it.endMs } ?: return
        if (first < tickMs) {
            tickMs = first
            handler.removeCallbacks(tick)
            handler.postDelayed(tick, maxOf(0L, first - SystemClock.elapsedRealtime()))
        }
        val woken = waits.minOf { it.alarmMs }
        if (woken < alarmMs) {
            alarmMs = woken
            alarms.setAndAllowWhileIdle(AlarmManager.ELAPSED_REALTIME_WAKEUP, woken, pending())
        }
    }

    private fun pending(): PendingIntent {
        val flags = PendingIntent.FLAG_IMMUTABLE or PendingIntent.FLAG_UPDATE_CURRENT
        return PendingIntent.getBroadcast(app, 0, Intent(ALARM).setPackage(app.packageName), flags)
    }

    @SinceApi(33)
    private fun registerHidden(receiver: BroadcastReceiver, filter: IntentFilter) {
        app.registerReceiver(receiver, filter, Context.RECEIVER_NOT_EXPORTED)
    }
}

/** Keeps the phone awake from an alarm to the gateway's answer, and from a push to its acknowledgement. */
internal class Awake(app: Context) {
    private val power = app.getSystemService(PowerManager::class.java)
    internal val answer = lockOf("carillon:answer")
    internal val handling = lockOf("carillon:push")

    fun untilAnswer() = answer.acquire(ANSWER_MS)

    fun untilAcknowledged() = handling.acquire(HANDLING_MS)

    fun answered() = letGo(answer)

    fun acknowledged() = letGo(handling)

    fun release() {
        answered()
        acknowledged()
    }

    private fun lockOf(name: String): PowerManager.WakeLock =
        power.newWakeLock(PowerManager.PARTIAL_WAKE_LOCK, name).apply { setReferenceCounted(false) }

    private fun letGo(lock: PowerManager.WakeLock) = synchronized(lock) { if (lock.isHeld) lock.release() }
}

/** The app's connector, which keeps the phone awake while a push is handled. */
internal class WakefulConnector(private val connector: Connector, private val awake: Awake) : Connector {
    override fun open(url: String, subprotocol: String, receiver: Connector.Receiver): Connection {
        val open = connector.open(url, subprotocol, object : Connector.Receiver {
            override fun onOpen() = receiver.onOpen()

            override fun onTexts(texts: List<String>) {
                if (texts.any { "\"push\"" in it }) awake.untilAcknowledged()
                awake.answered()
                receiver.onTexts(texts)
            }

            override fun onClosed(reason: String) = receiver.onClosed(reason)
        })
        return object : Connection {
            override fun send(text: String) {
                open.send(text)
                if ("\"ack\"" in text) awake.acknowledged()
            }

            override fun close() = open.close()

            override fun drop() = open.drop()
        }
    }
}

/** Tells when the phone has a network, another one, or may use it again. */
internal class NetworkWatch(app: Context, private val changed: () -> Unit) : ConnectivityManager.NetworkCallback() {
    private val networks = app.getSystemService(ConnectivityManager::class.java)
    private var isOpen = false

    fun open() {
        try {
            networks.registerDefaultNetworkCallback(this)
            isOpen = true
        } catch (error: RuntimeException) { // Android allows an app a hundred of them
            Log.w(TAG, "changes of the network are not seen: $error")
        }
    }

    fun close() {
        if (isOpen) networks.unregisterNetworkCallback(this)
        isOpen = false
    }

    override fun onAvailable(network: Network) = changed()

    override fun onBlockedStatusChanged(network: Network, blocked: Boolean) {
        if (!blocked) changed()
    }
}
