package dev.carillon.reactnative

import android.app.Notification
import android.content.Context
import android.content.Intent
import android.util.Log
import dev.carillon.android.Carillon
import dev.carillon.android.PushHandler
import dev.carillon.device.DeviceConfig
import dev.carillon.device.DeviceEvent
import dev.carillon.device.Done
import dev.carillon.device.Push
import java.io.File
import java.io.IOException
import org.json.JSONException
import org.json.JSONObject

/** Clicks that wait for JavaScript. */
private const val MAX_WAITING = 200

/**
 * What becomes of pushes and events: one object for the process, while JavaScript may start later, anew or never.
 *
 * Notifications are shown without JavaScript. Clicks and the last event wait for it; a push for the app itself is not
 * acknowledged without it, so the service sends it again.
 */
public object CarillonReact : PushHandler {
    private val lock = Any()

    // Guarded by the lock.
    private var app: Context? = null
    private var asked = JSONObject()
    private var listener: ((String) -> Unit)? = null
    private val clicks = ArrayDeque<String>()
    private var lastEvent: String? = null
    private val handling = LinkedHashMap<Long, Done>()
    private var lastId = 0L

    /**
     * Connects the app as JavaScript did at the last start of the app, unless it has stopped since. Call it in
     * `Application.onCreate`, so that pushes are taken and shown whatever has started the process.
     */
    @JvmStatic
    public fun resume(context: Context) {
        val app = context.applicationContext
        try {
            val kept = kept(app)
            if (kept.exists()) start(app, JSONObject(kept.readText()))
        } catch (error: IOException) {
            Log.w("Carillon", "not resumed: $error")
        } catch (error: JSONException) {
            Log.w("Carillon", "not resumed: $error")
        }
    }

    /** IllegalArgumentException: the URL is not that of a gateway. */
    internal fun start(context: Context, asked: JSONObject) {
        val own = asked.optJSONObject("attributes") ?: JSONObject()
        val attributes = Carillon.attributes(context) + own.keys().asSequence().associateWith { own.optString(it) }
        val heartbeat = asked.optInt("heartbeat").takeIf { it > 0 }
        val config = DeviceConfig(asked.optString("url"), asked.optString("appkey"), attributes, heartbeat)
        val isOther = synchronized(lock) {
            val changed = app != null && this.asked.toString() != asked.toString()
            app = context
            this.asked = asked
            changed
        }
        try {
            kept(context).writeText(asked.toString())
        } catch (error: IOException) {
            Log.w("Carillon", "the next start of the app waits for JavaScript: $error")
        }
        Carillon.handler = this
        if (isOther) Carillon.stop()
        Carillon.start(context, config)
    }

    internal fun stop(context: Context, stopped: Runnable) {
        kept(context).delete()
        synchronized(lock) { app = null }
        Carillon.stop(stopped)
    }

    internal fun listen(listener: (String) -> Unit) {
        val missed = synchronized(lock) {
            this.listener = listener
            (listOfNotNull(lastEvent) + clicks).also { clicks.clear() }
        }
        missed.forEach(listener)
    }

    /** This JavaScript has ended, and handles nothing more. */
    internal fun leave(listener: (String) -> Unit) {
        val unhandled = synchronized(lock) {
            if (this.listener !== listener) return
            this.listener = null
            handling.values.toList().also { handling.clear() }
        }
        for (done in unhandled) done.failed(IllegalStateException("JavaScript has ended"))
    }

    internal fun handled(id: Long, error: String?) {
        val done = synchronized(lock) { handling.remove(id) } ?: return
        if (error == null) done.handled() else done.failed(IllegalStateException(error))
    }

    override fun onMessage(push: Push, done: Done) {
        val (id, listening) = synchronized(lock) {
            if (listener != null) handling[++lastId] = done
            lastId to listener
        }
        if (listening == null) return done.failed(IllegalStateException("no JavaScript listens"))
        listening(event("push", push).put("id", id).toString())
    }

    override fun onNotification(push: Push): Boolean {
        val listening = synchronized(lock) { listener }
        listening?.invoke(event("notification", push).toString())
        return true
    }

    override fun style(push: Push, builder: Notification.Builder) {
        val (context, name) = synchronized(lock) { app to asked.optString("icon") }
        if (context == null || name.isEmpty()) return
        val icon = context.resources.getIdentifier(name, "drawable", context.packageName)
        if (icon != 0) builder.setSmallIcon(icon)
    }

    override fun onClick(push: Push): Boolean {
        val click = event("click", push).toString()
        val (listening, context) = synchronized(lock) {
            if (listener == null) clicks.addLast(click)
            if (clicks.size > MAX_WAITING) clicks.removeFirst()
            listener to app.takeIf { asked.optBoolean("opensClicks") }
        }
        listening?.invoke(click)
        if (context == null) return false
        val launch = context.packageManager.getLaunchIntentForPackage(context.packageName)
        launch?.let { context.startActivity(it.addFlags(Intent.FLAG_ACTIVITY_NEW_TASK)) }
        return true
    }

    override fun onEvent(event: DeviceEvent) {
        val text = JSONObject(fields(event)).toString()
        val listening = synchronized(lock) {
            lastEvent = text
            listener
        }
        listening?.invoke(text)
    }

    /** The same names as on iOS. */
    private fun fields(event: DeviceEvent): Map<String, Any> = when (event) {
        is DeviceEvent.Welcome -> mapOf("type" to "connected", "isNew" to event.isNew, "ignored" to event.ignored)
        is DeviceEvent.Goodbye -> mapOf("type" to "failed", "message" to event.toString())
        is DeviceEvent.Error -> mapOf("type" to "failed", "message" to event.toString())
        is DeviceEvent.Disconnected -> mapOf("type" to "retries", "afterMs" to event.retryMs, "reason" to event.reason)
        is DeviceEvent.Ended -> mapOf("type" to "ended", "reason" to event.reason, "message" to event.message)
    }

    private fun event(type: String, push: Push): JSONObject =
        JSONObject().put("type", type).put("push", JSONObject(push.toJson()))

    /** What JavaScript has asked for, in no backup: a restored phone connects when its user has agreed. */
    private fun kept(context: Context) = File(context.noBackupFilesDir, "carillon-react-native.json")
}
