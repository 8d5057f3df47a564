package dev.carillon.android

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.content.Context
import android.media.AudioAttributes
import android.os.Build
import android.provider.Settings
import dev.carillon.device.Push

/** The id of all notifications; their tags differ. Firebase's own have this one too. */
private const val ID = 0

/**
 * Shows pushes as notifications. A push that comes again, or that the phone has shown by itself, takes its own place.
 *
 * From Android 8 on sound and vibration belong to a channel, and the user may change them there: so there is a channel
 * for each of their four combinations, made when it is first needed.
 */
internal class Notifications(private val app: Context, private val files: KeptFiles) {
    private val manager = app.getSystemService(NotificationManager::class.java)

    /** Returns whether the notification is shown: false where the user has forbidden it. */
    fun show(push: Push, handler: PushHandler): Boolean {
        push.badge?.let { setBadge(if (it < 0) files.badgeCount + 1 else it) }
        if (!manager.areNotificationsEnabled()) return false
        val builder = builder(push.sound == true, push.vibrate == true)
            .setSmallIcon(android.R.drawable.stat_notify_chat)
            .setContentTitle(push.title ?: appName(app))
            .setContentText(push.content)
            .setStyle(Notification.BigTextStyle().bigText(push.content))
            .setShowWhen(true)
            .setAutoCancel(true)
            .setOngoing(push.removable == false)
            .setContentIntent(ClickActivity.pending(app, push))
            .setDeleteIntent(PushReceiver.dismissed(app, push.msgid))
        if (push.badge != null) builder.setNumber(files.badgeCount)
        handler.style(push, builder)
        val notification = builder.build()
        if (Build.VERSION.SDK_INT >= 26 && isBlocked(notification)) return false
        manager.notify("carillon-${push.msgid}", ID, notification)
        return true
    }

    fun setBadge(count: Int) {
        files.badgeCount = maxOf(0, count)
        Carillon.handler?.onBadge(files.badgeCount)
    }

    private fun builder(sound: Boolean, vibrate: Boolean): Notification.Builder =
        if (Build.VERSION.SDK_INT >= 26) inChannel(sound, vibrate) else withDefaults(sound, vibrate)

    @Suppress("DEPRECATION") // as it was before channels
    private fun withDefaults(sound: Boolean, vibrate: Boolean): Notification.Builder {
        val defaults = (if (sound) Notification.DEFAULT_SOUND else 0) or if (vibrate) Notification.DEFAULT_VIBRATE else 0
        val priority = if (defaults == 0) Notification.PRIORITY_LOW else Notification.PRIORITY_DEFAULT
        return Notification.Builder(app).setDefaults(defaults).setPriority(priority)
    }

    /** A channel that exists stays as it is: the user, and the app, which may have made it under this id, decide. */
    @SinceApi(26)
    private fun inChannel(sound: Boolean, vibrate: Boolean): Notification.Builder {
        val id = "carillon" + (if (sound) "-sound" else "") + if (vibrate) "-vibrate" else ""
        if (manager.getNotificationChannel(id) == null) {
            val name = appName(app) + (if (sound) " \u266a" else "") + if (vibrate) " \ud83d\udcf3" else ""
            val isSilent = !sound && !vibrate
            val importance = if (isSilent) NotificationManager.IMPORTANCE_LOW else NotificationManager.IMPORTANCE_DEFAULT
            val channel = NotificationChannel(id, name, importance)
            channel.enableVibration(vibrate)
            if (sound) channel.setSound(Settings.System.DEFAULT_NOTIFICATION_URI, AudioAttributes.Builder().setUsage(AudioAttributes.USAGE_NOTIFICATION).build())
            else channel.setSound(null, null)
            manager.createNotificationChannel(channel)
        }
        return Notification.Builder(app, id)
    }

    /** Whether the notification's channel, which the app may have replaced, is off or missing. */
    @SinceApi(26)
    private fun isBlocked(notification: Notification): Boolean {
        val channel = manager.getNotificationChannel(notification.channelId)
        return channel == null || channel.importance == NotificationManager.IMPORTANCE_NONE
    }
}

internal fun appName(app: Context): String = app.applicationInfo.loadLabel(app.packageManager).toString()
