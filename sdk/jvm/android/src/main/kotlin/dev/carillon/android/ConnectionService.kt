package dev.carillon.android

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.Service
import android.content.Context
import android.content.Intent
import android.os.Build
import android.os.IBinder
import android.util.Log

private const val CHANNEL = "carillon-connection"
private const val ID = 0x0ca1

/**
 * A foreground service that keeps the process alive, and so connected, while the app is in the background. It is for
 * apps whose users want that, and see it by a notification that stays: no app has it unless its manifest declares it,
 * with the type `remoteMessaging` or `specialUse`, and `start` is called.
 *
 * Android does not start it again by itself.
 */
public open class ConnectionService : Service() {
    override fun onCreate() {
        super.onCreate()
        startForeground(ID, notification())
    }

    override fun onStartCommand(intent: Intent?, flags: Int, startId: Int): Int = START_NOT_STICKY

    override fun onBind(intent: Intent?): IBinder? = null

    /** Returns the notification that stays while the service runs. */
    protected open fun notification(): Notification {
        val builder = if (Build.VERSION.SDK_INT >= 26) inChannel() else withPriority()
        return builder.setSmallIcon(android.R.drawable.stat_notify_sync_noanim)
            .setContentTitle(appName(this)).setOngoing(true).build()
    }

    @Suppress("DEPRECATION") // as it was before channels
    private fun withPriority() = Notification.Builder(this).setPriority(Notification.PRIORITY_MIN)

    @SinceApi(26)
    private fun inChannel(): Notification.Builder {
        val channel = NotificationChannel(CHANNEL, "${appName(this)} \u2026", NotificationManager.IMPORTANCE_MIN)
        getSystemService(NotificationManager::class.java).createNotificationChannel(channel)
        return Notification.Builder(this, CHANNEL)
    }

    public companion object {
        /**
         * Starts the service, or the app's subclass of it. Call it while an activity is visible: from the background
         * Android 12 and newer refuse it, and the answer is false, as where the manifest does not declare the service.
         */
        @JvmStatic
        @JvmOverloads
        public fun start(context: Context, service: Class<out ConnectionService> = ConnectionService::class.java): Boolean {
            val intent = Intent(context, service)
            return try {
                (if (Build.VERSION.SDK_INT >= 26) startForeground(context, intent) else context.startService(intent)) != null
            } catch (error: RuntimeException) {
                Log.w(TAG, "the service cannot be started now: $error")
                false
            }
        }

        /** Ends the service; the connection goes on as long as the process. */
        @JvmStatic
        @JvmOverloads
        public fun stop(context: Context, service: Class<out ConnectionService> = ConnectionService::class.java) {
            context.stopService(Intent(context, service))
        }

        @SinceApi(26)
        private fun startForeground(context: Context, intent: Intent) = context.startForegroundService(intent)
    }
}
