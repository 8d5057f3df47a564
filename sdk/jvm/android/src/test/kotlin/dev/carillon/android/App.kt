package dev.carillon.android

import android.app.Application
import android.app.Notification
import android.app.NotificationManager
import android.content.ComponentName
import android.content.Intent
import android.content.IntentFilter
import android.content.pm.ActivityInfo
import android.content.pm.PackageInfo
import android.content.pm.ApplicationInfo
import android.os.Looper
import dev.carillon.device.Connection
import dev.carillon.device.Connector
import dev.carillon.device.DeviceConfig
import dev.carillon.device.DeviceEvent
import dev.carillon.device.Done
import dev.carillon.device.Push
import java.util.concurrent.LinkedBlockingQueue
import java.util.logging.Level
import java.util.logging.Logger
import org.json.JSONObject
import org.junit.rules.ExternalResource
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf

private const val TRIES = 12_000
private const val PAUSE_MS = 5L

/** Runs what waits on the main thread until something is there; other threads work meanwhile. */
internal fun <T : Any> until(what: String, found: () -> T?): T {
    repeat(TRIES) {
        shadowOf(Looper.getMainLooper()).idle()
        found()?.let { return it }
        Thread.sleep(PAUSE_MS)
    }
    throw AssertionError("$what did not come")
}

internal fun push(msgid: Long, fields: String = ""): String =
    """{"type": "push", "msgid": $msgid, "is_notif": 1, "content": "content $msgid", "expires_at": 9$fields}"""

internal fun click(action: Int, param: String? = null): String =
    """, "click": {"action": $action${if (param == null) "" else """, "param": $param"""}}"""

/** A gateway on connections of a test. */
internal class FakeGateway : Connector {
    val opened = LinkedBlockingQueue<Opened>()

    override fun open(url: String, subprotocol: String, receiver: Connector.Receiver): Connection =
        Opened(receiver).also {
            opened.add(it)
            receiver.onOpen()
        }

    /** The next connection, welcomed. */
    fun welcome(): Opened = until("a connection") { opened.poll() }.apply {
        hello = sent()
        receive("""{"type": "welcome", "token": "t", "key": "k", "heartbeat": 900, "new": true}""")
    }

    class Opened(private val receiver: Connector.Receiver) : Connection {
        private val sent = LinkedBlockingQueue<String>()
        lateinit var hello: JSONObject

        override fun send(text: String) {
            sent.add(text)
        }

        override fun close() = receiver.onClosed("closed")

        override fun drop() {}

        fun receive(vararg texts: String) = receiver.onTexts(texts.toList())

        fun lose() = receiver.onClosed("lost")

        fun sent(): JSONObject = JSONObject(until("a frame") { sent.poll() })

        /** The next frame of a type, whatever comes before it. */
        fun sent(type: String): JSONObject {
            while (true) sent().let { if (it.getString("type") == type) return it }
        }
    }
}

/** What names the process where no test replaces it. */
private val ownProcessName = Carillon.processName

/** An app with the SDK in a fresh process; it is stopped after the test. */
internal class App : ExternalResource(), PushHandler {
    val gateway = FakeGateway()
    val messages = ArrayList<Push>()
    val clicks = ArrayList<Push>()
    val events = ArrayList<DeviceEvent>()
    val badges = ArrayList<Int>()
    var opensClicks = false
    var showsItself = false
    val nameOfProcess = ownProcessName
    val context: Application get() = RuntimeEnvironment.getApplication()
    val notifications: NotificationManager get() = context.getSystemService(NotificationManager::class.java)

    override fun before() {
        Logger.getLogger("dev.carillon.device").level = Level.OFF
        Carillon.processName = { it.applicationInfo.processName }
        Carillon.handler = this
    }

    override fun after() {
        stop()
        Carillon.handler = null
        Carillon.forget()
    }

    fun start(): FakeGateway.Opened {
        Carillon.start(context, DeviceConfig("wss://push.example.org/device/v1", "1000000001"), gateway)
        return gateway.welcome()
    }

    fun stop() {
        var isOver = false
        Carillon.stop { isOver = true }
        until("the end") { true.takeIf { isOver } }
    }

    fun shown(msgid: Long): Notification? = shadowOf(notifications).getNotification("carillon-$msgid", 0)

    fun awaitShown(msgid: Long): Notification = until("a notification") { shown(msgid) }

    /** Installs an activity in this app or in another one. */
    fun install(name: String, isExported: Boolean, scheme: String? = null, packageName: String = context.packageName) {
        val info = ActivityInfo().apply {
            this.packageName = packageName
            this.name = name
            exported = isExported
            enabled = true
            applicationInfo = ApplicationInfo().apply {
                this.packageName = packageName
                enabled = true
            }
        }
        val packages = shadowOf(context.packageManager)
        if (runCatching { context.packageManager.getPackageInfo(packageName, 0) }.isFailure) packages.installPackage(PackageInfo().apply {
            this.packageName = packageName
            applicationInfo = info.applicationInfo
        })
        packages.addOrUpdateActivity(info)
        if (scheme == null) return
        val filter = IntentFilter(Intent.ACTION_VIEW).apply {
            addCategory(Intent.CATEGORY_DEFAULT)
            addCategory(Intent.CATEGORY_BROWSABLE)
            addDataScheme(scheme)
        }
        packages.addIntentFilterForActivity(ComponentName(packageName, name), filter)
    }

    /** Makes the activity the one that launchers start. */
    fun launcher(name: String = "org.example.Main") {
        install(name, isExported = true)
        val filter = IntentFilter(Intent.ACTION_MAIN).apply { addCategory(Intent.CATEGORY_LAUNCHER) }
        shadowOf(context.packageManager).addIntentFilterForActivity(ComponentName(context.packageName, name), filter)
    }

    override fun onMessage(push: Push, done: Done) {
        messages.add(push)
        done.handled()
    }

    override fun onNotification(push: Push): Boolean = !showsItself

    override fun onClick(push: Push): Boolean {
        clicks.add(push)
        return opensClicks
    }

    override fun onBadge(count: Int) {
        badges.add(count)
    }

    override fun onEvent(event: DeviceEvent) {
        events.add(event)
    }
}
