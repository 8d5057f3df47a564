package dev.carillon.android

import android.Manifest
import android.app.Activity
import android.app.Application
import android.content.Context
import android.content.Intent
import android.content.pm.PackageManager
import android.os.Build
import android.os.Bundle
import android.os.Handler
import android.os.Looper
import android.util.Log
import dev.carillon.device.Answer
import dev.carillon.device.CarillonDevice
import dev.carillon.device.Connector
import dev.carillon.device.DeviceConfig
import dev.carillon.device.DeviceEvent
import dev.carillon.device.DeviceListener
import dev.carillon.device.Done
import dev.carillon.device.FileStorage
import dev.carillon.device.Push
import dev.carillon.device.UnavailableException
import dev.carillon.device.WebSocketConnector
import java.io.File
import java.util.concurrent.Executor

internal const val TAG = "Carillon"

/** The field of a vendor's message, and the extra of an intent, that holds a push. */
internal const val PUSH = "carillon"

/** Doze allows an alarm about every nine minutes, so a shorter heartbeat would be late. */
private const val HEARTBEAT_S = 900

/** Calls of the app that wait for `start`, and clicks that wait for a handler. */
private const val MAX_EARLY = 200

private const val SDK_VERSION = "android-0.1.0"

/**
 * The push messages of an app: one connection to the gateway, notifications, clicks and reports.
 *
 * Before `start` nothing is read, stored or connected. Every function may be called from any thread and returns at once.
 * In an app of several processes only the main one, which has the package's name, is connected: `start` does nothing in
 * the others, which hand their reports and vendors' messages over to it.
 */
public object Carillon {
    private val lock = Any()
    private val main = Handler(Looper.getMainLooper())

    // Guarded by the lock.
    private var running: Running? = null
    private var isStopping = false
    private var next: (() -> Unit)? = null
    private var other: Context? = null
    private val early = ArrayList<VendorMessage>()
    private val clicks = ArrayList<Push>()
    private val addresses = LinkedHashMap<String, Address>()

    /** What the app does with its pushes; set it before `start`. */
    @JvmStatic
    @Volatile
    public var handler: PushHandler? = null
        set(value) {
            val missed = synchronized(lock) {
                field = value
                if (value == null) emptyList() else clicks.toList().also { clicks.clear() }
            }
            if (value != null) for (push in missed) main.post { value.onClick(push) }
        }

    /**
     * The device between `start` and its end; null in between, and in every process but the main one. It sets alias (with
     * a proof, if the app's server gives one), tags and attributes.
     */
    @JvmStatic
    public val device: CarillonDevice? get() = synchronized(lock) { running }?.device

    /**
     * Connects the app, and keeps it connected until `stop`, a final goodbye, or the end of the process. Call it at each
     * start of the app, once the user has agreed; a further call while it runs has no effect.
     *
     * The default heartbeat is 900 s. `connector` opens the connections: one of the app's own takes other sockets or
     * authorities.
     */
    @JvmStatic
    @JvmOverloads
    public fun start(context: Context, config: DeviceConfig, connector: Connector = WebSocketConnector()) {
        val app = context.applicationContext
        if (processName(app) != app.applicationInfo.processName) return handOver(app)
        checkNotNull(handler) { "set Carillon.handler before Carillon.start" }
        synchronized(lock) {
            if (isStopping) next = { start(app, config, connector) }
            if (isStopping || running != null) return
            val waiting = early.toList().also { early.clear() }
            running = Running(app, config, connector).also { it.start(waiting) }
        }
    }

    /**
     * Disconnects, and does not connect again before the next `start`. `stopped` runs, on the main thread, when nothing of
     * the SDK runs any more: after six seconds at most.
     */
    @JvmStatic
    @JvmOverloads
    public fun stop(stopped: Runnable = Runnable {}) {
        val ending = synchronized(lock) {
            next = null
            early.clear()
            running?.also { isStopping = true }
        }
        if (ending == null) main.post(stopped) else ending.stop { ended(ending).also { stopped.run() } }
    }

    /**
     * Sets where a channel, such as "fcm", reaches the app while it is not connected: the token that the vendor's SDK
     * returns. Call it at each start of the process and whenever the token changes, also before `start`. It is told to the
     * service once there is a connection, and at each later one.
     */
    @JvmStatic
    @JvmOverloads
    public fun setAddress(channel: String, token: String, keys: Map<String, String>? = null): Unit =
        address(channel, Address(token, keys))

    /** Removes the address of a channel, as when the user turns notifications off. */
    @JvmStatic
    public fun clearAddress(channel: String): Unit = address(channel, Address(null, null))

    /**
     * Takes a message that a vendor's SDK has handed to the app, with its data and, if it was a notification, its title
     * and content. False: it is not from Carillon. Before `start` the message waits in memory.
     */
    @JvmStatic
    @JvmOverloads
    public fun onMessage(data: Map<String, String>, title: String? = null, content: String? = null): Boolean {
        if (Push.fromJson(data[PUSH] ?: return false) == null) return false
        val message = VendorMessage(data.getValue(PUSH), title, content)
        val (started, elsewhere) = synchronized(lock) {
            if (running == null && other == null && early.size < MAX_EARLY) early.add(message)
            running to other
        }
        started?.take(message)
        elsewhere?.run { sendBroadcast(PushReceiver.message(this, message)) }
        return true
    }

    /**
     * Handles the intent of an activity that a notification has opened which the phone has shown by itself, while the app
     * was dead: reports the click, and opens its URL. Call it in `onCreate` and in `onNewIntent` of the app's main activity.
     * False: the intent is not from Carillon. Any app can send such an intent, so it opens nothing but web pages.
     */
    @JvmStatic
    public fun onIntent(activity: Activity, intent: Intent?): Boolean {
        val push = intent?.textExtra(PUSH)?.let { Push.fromJson(it) } ?: return false
        intent.removeExtra(PUSH) // an activity that is made anew gets its intent again
        report(activity, "clicked", push.msgid)
        if (!tell(push) && push.clickAction == OPEN_URL) webPage(push.clickParam)?.let { open(activity, it) }
        return true
    }

    /** Reports "shown", "clicked" or "dismissed" of a notification that the app shows itself. */
    @JvmStatic
    public fun report(context: Context, event: String, msgid: Long) {
        val app = context.applicationContext
        val (started, elsewhere) = synchronized(lock) { running to other }
        when {
            elsewhere != null -> app.sendBroadcast(PushReceiver.report(app, event, msgid))
            started != null -> started.device.report(event, msgid)
            else -> KeptFiles(app).addReport(event, msgid)
        }
    }

    /** Changes the number of the app's icon: 0 when the user has seen everything. */
    @JvmStatic
    public fun setBadge(count: Int) {
        val started = synchronized(lock) { running }
        main.post { started?.notifications?.setBadge(count) }
    }

    /**
     * Asks the user whether notifications may be shown, from Android 13 on; the answer comes to the activity's
     * `onRequestPermissionsResult`. True: there is nothing to ask. Without the permission nothing is shown, and nothing
     * is reported as shown.
     */
    @JvmStatic
    public fun requestPermission(activity: Activity, requestCode: Int): Boolean {
        if (Build.VERSION.SDK_INT < 33) return true
        val permission = Manifest.permission.POST_NOTIFICATIONS
        if (activity.checkSelfPermission(permission) == PackageManager.PERMISSION_GRANTED) return true
        activity.requestPermissions(arrayOf(permission), requestCode)
        return false
    }

    /** Reads the attributes by which pushes can be filtered, for `DeviceConfig`: brand, model, resolution and versions. */
    @JvmStatic
    @Suppress("DEPRECATION") // the function that replaces getPackageInfo came with Android 13
    public fun attributes(context: Context): Map<String, String> {
        val version = context.packageManager.getPackageInfo(context.packageName, 0).versionName
        val screen = context.resources.displayMetrics
        return mapOf(
            "brand" to Build.BRAND, "model" to Build.MODEL, "os_version" to Build.VERSION.RELEASE,
            "resolution" to "${screen.widthPixels}*${screen.heightPixels}",
            "sdk_version" to SDK_VERSION, "app_version" to version.orEmpty(),
        ).filterValues { it.isNotEmpty() }
    }

    /** The user has clicked on a notification of the SDK's. */
    internal fun clicked(activity: Activity, push: Push) {
        report(activity, "clicked", push.msgid)
        if (!tell(push)) clickIntent(activity, push)?.let { open(activity, it) }
    }

    /** The device has ended. */
    internal fun ended(which: Running) {
        val again = synchronized(lock) {
            if (running !== which) return
            running = null
            isStopping = false
            next.also { next = null }
        }
        which.release()
        again?.invoke()
    }

    internal fun addresses(): Map<String, Address> = synchronized(lock) { LinkedHashMap(addresses) }

    private fun tell(push: Push): Boolean {
        val listening = synchronized(lock) { handler.also { if (it == null && clicks.size < MAX_EARLY) clicks.add(push) } }
        return listening?.onClick(push) ?: false
    }

    private fun address(channel: String, address: Address) {
        val connected = synchronized(lock) {
            addresses[channel] = address
            running
        }
        connected?.run { address.send(device, channel) }
    }

    /** In a process that is not the main one: what waits here is handed over, and so is what comes. */
    private fun handOver(app: Context) {
        val waiting = synchronized(lock) {
            other = app
            early.toList().also { early.clear() }
        }
        for (message in waiting) app.sendBroadcast(PushReceiver.message(app, message))
    }

    /** Makes everything as in a new process, for tests. */
    internal fun forget() {
        val old = synchronized(lock) {
            running.also {
                running = null
                isStopping = false
                next = null
                other = null
                early.clear()
                clicks.clear()
                addresses.clear()
            }
        }
        old?.release()
    }

    /** Replaced in tests, where a process has another name. */
    internal var processName: (Context) -> String = { if (Build.VERSION.SDK_INT >= 28) ownName() else readName() }
}

/** A message of a vendor's service: the push as JSON, and what the phone could show by itself. */
internal class VendorMessage(val push: String, val title: String?, val content: String?)

/** An address of a channel; without a token it is removed. */
internal class Address(private val token: String?, private val keys: Map<String, String>?) {
    fun send(device: CarillonDevice, channel: String) {
        val answer = Answer<Unit> { _, error ->
            if (error != null && error !is UnavailableException) Log.w(TAG, "the address of $channel was not accepted: $error")
        }
        if (token == null) device.clearAddress(channel, answer) else device.setAddress(channel, token, keys, answer)
    }
}

/** A device with what it needs of Android, from `start` to its end. */
internal class Running(private val app: Context, config: DeviceConfig, connector: Connector) : DeviceListener {
    private val awake = Awake(app)
    private val main = Handler(Looper.getMainLooper())
    private val timers = AlarmTimers(app, awake)
    private val files = KeptFiles(app)
    private var areReportsTaken = false
    private val activities = ForegroundWatch { cameForward() }
    val notifications = Notifications(app, files)
    val device = CarillonDevice(
        if (config.heartbeatS != null) config else DeviceConfig(config.url, config.appkey, config.attributes, HEARTBEAT_S),
        FileStorage(files.state),
        this,
        WakefulConnector(connector, awake),
        timers,
        Executor { main.post(it) },
    )
    private val network = NetworkWatch(app, device::checkConnection)

    fun start(waiting: List<VendorMessage>) {
        for ((event, msgid) in files.reports()) device.report(event, msgid)
        waiting.forEach(::take)
        timers.open(device::checkConnection)
        network.open()
        (app as? Application)?.registerActivityLifecycleCallbacks(activities)
        device.start()
    }

    /** The vendor's SDK lets the phone sleep when the app has the message; it stays awake until the acknowledgement. */
    fun take(message: VendorMessage) {
        awake.untilAcknowledged()
        device.onMessage(mapOf(PUSH to message.push), message.title, message.content)
    }

    fun stop(stopped: () -> Unit): Unit = device.stop { main.post(stopped) }

    fun release() {
        (app as? Application)?.unregisterActivityLifecycleCallbacks(activities)
        network.close()
        timers.close()
        awake.release()
    }

    override fun onPush(push: Push, done: Done) {
        val handler = Carillon.handler
        if (handler == null) return done.failed(IllegalStateException("Carillon.handler is null"))
        if (!push.isNotification) return handler.onMessage(push, done)
        if (handler.onNotification(push) && notifications.show(push, handler)) device.report("shown", push.msgid)
        done.handled()
    }

    override fun onEvent(event: DeviceEvent) {
        if (!areReportsTaken) files.removeReports() // the device has them in its state since before the first event
        areReportsTaken = true
        if (event is DeviceEvent.Welcome) for ((channel, address) in Carillon.addresses()) address.send(device, channel)
        if (event is DeviceEvent.Ended) Carillon.ended(this)
        Carillon.handler?.onEvent(event)
    }

    private fun cameForward() {
        device.activity("open")
        device.checkConnection()
    }
}

/** Tells when the app comes to the foreground: an activity is visible after none was. */
private class ForegroundWatch(private val cameForward: () -> Unit) : Application.ActivityLifecycleCallbacks {
    private val visible = HashSet<Activity>()
    private var isTurning = false

    override fun onActivityStarted(activity: Activity) {
        if (visible.isEmpty() && !isTurning && activity !is ClickActivity) cameForward()
        isTurning = false
        visible.add(activity)
    }

    override fun onActivityStopped(activity: Activity) {
        visible.remove(activity)
        isTurning = activity.isChangingConfigurations
    }

    override fun onActivityCreated(activity: Activity, state: Bundle?) {}

    override fun onActivityResumed(activity: Activity) {}

    override fun onActivityPaused(activity: Activity) {}

    override fun onActivitySaveInstanceState(activity: Activity, state: Bundle) {}

    override fun onActivityDestroyed(activity: Activity) {}
}

/**
 * The files of the SDK. None is in backups: two phones with one identity would replace each other for ever.
 *
 * Reports of before `start` are kept only where an earlier process has started the SDK.
 */
internal class KeptFiles(app: Context) {
    private val folder: File = app.noBackupFilesDir
    private val reports = File(folder, "carillon-reports")
    private val badge = File(folder, "carillon-badge")
    val state: File = File(folder, "carillon.json")

    fun addReport(event: String, msgid: Long) = synchronized(FILES) {
        if (state.exists() && reports.length() < MAX_REPORTS_BYTES) reports.appendText("$event $msgid\n")
    }

    fun reports(): List<Pair<String, Long>> = synchronized(FILES) {
        if (!reports.exists()) return emptyList()
        reports.readLines().mapNotNull { line ->
            line.substringAfter(' ').toLongOrNull()?.let { line.substringBefore(' ') to it }
        }
    }

    fun removeReports() {
        synchronized(FILES) { reports.delete() }
    }

    var badgeCount: Int
        get() = if (badge.exists()) badge.readText().toIntOrNull() ?: 0 else 0
        set(count) = badge.writeText(count.toString())

    private companion object {
        const val MAX_REPORTS_BYTES = 8192
        val FILES = Any()
    }
}

/** Marks what is called from a newer Android than the oldest one only. */
@Retention(AnnotationRetention.BINARY)
@Target(AnnotationTarget.FUNCTION, AnnotationTarget.CLASS)
internal annotation class SinceApi(val level: Int)

@SinceApi(28)
private fun ownName(): String = Application.getProcessName()

private fun readName(): String = File("/proc/self/cmdline").readText().substringBefore('\u0000')

/** Opens what a click names, or else the app. */
internal fun open(activity: Activity, intent: Intent) {
    for (target in listOfNotNull(intent, launchIntent(activity))) {
        try {
            return activity.startActivity(target)
        } catch (error: RuntimeException) { // there is no activity for it, or it is not to be opened by this app
            Log.w(TAG, "a click cannot be carried out: $error")
        }
    }
}

/** An extra of an intent that any app may have made, whose parcel may be damaged. */
internal fun Intent.textExtra(name: String): String? = try {
    getStringExtra(name)
} catch (_: RuntimeException) {
    null
}
