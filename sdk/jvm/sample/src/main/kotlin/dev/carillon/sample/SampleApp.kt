package dev.carillon.sample

import android.app.Application
import android.app.Notification
import android.content.Context
import android.content.SharedPreferences
import dev.carillon.android.Carillon
import dev.carillon.android.PushHandler
import dev.carillon.device.DeviceConfig
import dev.carillon.device.DeviceEvent
import dev.carillon.device.Done
import dev.carillon.device.KnownDevice
import dev.carillon.device.Push
import java.io.File

private const val MAX_MESSAGES = 20

/**
 * The app's side of the SDK. It is the process's first object, so the handler is there whatever has started the process.
 *
 * An app of your own has its gateway's URL and appkey in its code; this one takes them from its page, to try any service.
 */
class SampleApp : Application(), PushHandler {
    private val settings: SharedPreferences get() = getSharedPreferences("sample", Context.MODE_PRIVATE)
    val url: String get() = settings.getString("url", null).orEmpty()
    val appkey: String get() = settings.getString("appkey", null).orEmpty()
    val alias: String get() = settings.getString("alias", null).orEmpty()

    var state = "not connected"
        private set
    var known: KnownDevice? = null
        private set

    /** The newest first; an app of your own stores them. */
    val messages = ArrayDeque<String>()

    /** Called on the main thread when there is something else to show. */
    var onChange: () -> Unit = {}

    override fun onCreate() {
        super.onCreate()
        Carillon.handler = this
        if (url.isNotEmpty()) start()
    }

    /** Connects to this service from now on, also after a restart of the app. The user has agreed by the link or a button. */
    fun connect(url: String, appkey: String, alias: String) {
        DeviceConfig(url, appkey) // IllegalArgumentException: no URL of a gateway
        val isOther = url != this.url || appkey != this.appkey
        settings.edit().putString("url", url).putString("appkey", appkey).putString("alias", alias).apply()
        Carillon.stop {
            if (isOther) forget()
            start()
        }
    }

    /** The identity of before, with its secret key, is the other service's alone. */
    private fun forget() {
        File(noBackupFilesDir, "carillon.json").delete()
        known = null
    }

    fun setAlias(alias: String) {
        settings.edit().putString("alias", alias).apply()
        val device = Carillon.device ?: return
        if (alias.isEmpty()) device.clearAlias { _, error -> read(error) } else device.setAlias(alias) { _, error -> read(error) }
    }

    private fun start() {
        show("connecting")
        Carillon.start(this, DeviceConfig(url, appkey, Carillon.attributes(this)))
    }

    /** Asks the service for alias and tags, which app servers may change too. */
    private fun read(failed: Exception? = null) {
        if (failed != null) return show("connected, but: ${failed.message}")
        Carillon.device?.getDevice { found, error ->
            if (found != null) known = found
            show(if (error == null) "connected" else "connected, but: ${error.message}")
        }
    }

    private fun show(state: String) {
        this.state = state
        onChange()
    }

    private fun list(what: String, push: Push) {
        messages.addFirst("$what ${push.msgid}: ${push.title ?: ""} ${push.content}")
        if (messages.size > MAX_MESSAGES) messages.removeLast()
        onChange()
    }

    override fun onEvent(event: DeviceEvent) {
        if (event is DeviceEvent.Welcome) {
            if (alias.isEmpty()) read() else setAlias(alias)
        } else {
            show(event.toString())
        }
    }

    override fun onMessage(push: Push, done: Done) {
        list("message", push)
        done.handled()
    }

    override fun onNotification(push: Push): Boolean {
        list("notification", push)
        return true // the SDK shows it
    }

    override fun style(push: Push, builder: Notification.Builder) {
        builder.setSmallIcon(applicationInfo.icon)
    }

    override fun onClick(push: Push): Boolean {
        list("click on", push)
        return false // the SDK opens what it names
    }
}
