package dev.carillon.android

import android.Manifest
import android.app.Activity
import android.app.AlarmManager
import android.app.Notification
import android.app.PendingIntent
import android.app.Service
import android.content.Intent
import android.net.ConnectivityManager
import android.os.Build
import android.os.SystemClock
import dev.carillon.device.Connector
import dev.carillon.device.DeviceConfig
import java.io.File
import java.time.Duration
import org.json.JSONArray
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.shadows.ShadowNetwork
import org.robolectric.shadows.ShadowPowerManager
import org.robolectric.shadows.ShadowSystemClock

/** The SDK of an app on each Android: what it does between start and stop, and around them. */
@RunWith(RobolectricTestRunner::class)
class CarillonTest {
    @get:Rule
    internal val app = App()
    private val alarms get() = shadowOf(app.context.getSystemService(AlarmManager::class.java))
    private val networks get() = shadowOf(app.context.getSystemService(ConnectivityManager::class.java))
    private val files get() = app.context.noBackupFilesDir.list().orEmpty().toSet()

    @Test
    fun `before the start nothing is read, stored or connected, and what comes waits`() {
        val threads = threads()
        assertTrue(Carillon.onMessage(mapOf("carillon" to push(1))))
        Carillon.setAddress("fcm", "address")
        Carillon.setBadge(3)
        Carillon.report(app.context, "clicked", 7)
        assertNull(Carillon.device)
        assertEquals(emptySet<String>(), files)
        assertEquals(0, alarms.scheduledAlarms.size + networks.networkCallbacks.size + app.gateway.opened.size)
        assertEquals(emptySet<Thread>(), threads() - threads)
        val connection = app.start()
        app.awaitShown(1)
        val sent = List(3) { connection.sent() }.associateBy { it.getString("type") }
        assertEquals(setOf("report", "set_address", "ack"), sent.keys)
        assertEquals("address", sent.getValue("set_address").getString("address"))
        assertEquals(JSONArray("[1]"), sent.getValue("ack").getJSONArray("msgids"))
    }

    @Test
    fun `an app without a handler is told so`() {
        Carillon.handler = null
        val config = DeviceConfig("wss://push.example.org/device/v1", "1000000001")
        assertThrows(IllegalStateException::class.java) { Carillon.start(app.context, config, app.gateway) }
    }

    @Test
    fun `another process of the app connects nothing, and hands over what it has`() {
        assertTrue(Carillon.onMessage(mapOf("carillon" to push(1))))
        Carillon.processName = { "${it.packageName}:other" }
        Carillon.start(app.context, DeviceConfig("wss://push.example.org/device/v1", "1000000001"), app.gateway)
        Carillon.report(app.context, "clicked", 5)
        assertNull(Carillon.device)
        assertEquals(emptySet<String>(), files)
        val handedOver = shadowOf(app.context).broadcastIntents.filter { it.component?.className == PushReceiver::class.java.name }
        assertEquals(2, handedOver.size)
        Carillon.forget() // as in the main process
        Carillon.processName = { it.applicationInfo.processName }
        val connection = app.start()
        handedOver.forEach { PushReceiver().onReceive(app.context, it) }
        app.awaitShown(1)
        val report = connection.sent("report")
        assertEquals(listOf("clicked", 5), listOf(report.getString("event"), report.getInt("msgid")))
    }

    @Test
    fun `the identity is kept out of backups, and a later process has it`() {
        val hello = app.start().hello
        assertEquals(listOf(false, 900), listOf(hello.has("token"), hello.getInt("heartbeat")))
        until("the welcome") { app.events.firstOrNull() }
        assertEquals(setOf("carillon.json"), files)
        app.stop()
        assertEquals(listOf("t", "k"), app.start().hello.run { listOf(getString("token"), getString("key")) })
    }

    @Test
    fun `nothing of the SDK lies where a backup takes it from`() {
        app.start().receive(push(1, """, "badge": 3"""))
        app.awaitShown(1)
        app.stop()
        Carillon.report(app.context, "clicked", 1)
        assertEquals(setOf("carillon.json", "carillon-badge", "carillon-reports"), files)
        val backedUp = File(app.context.applicationInfo.dataDir).walk().filter { it.isFile && !it.startsWith(app.context.noBackupFilesDir) }
        assertEquals(emptyList<File>(), backedUp.toList())
    }

    @Test
    fun `the name of a process comes from Android, and from Linux before Android 9`() {
        val isAsked = Build.VERSION.SDK_INT >= 28
        assertEquals(if (isAsked) app.context.packageName else "java", app.nameOfProcess(app.context).substringAfterLast('/'))
    }

    @Test
    fun `a start while the SDK stops comes after the stop`() {
        app.start()
        Carillon.stop()
        app.start()
        assertNotNull(Carillon.device)
    }

    @Test
    fun `after a final goodbye nothing of the SDK runs, and the app may start it again`() {
        app.start().receive("""{"type": "goodbye", "reason": "replaced"}""")
        until("the end") { true.takeIf { Carillon.device == null } }
        assertEquals(0, alarms.scheduledAlarms.size + networks.networkCallbacks.size)
        app.start()
    }

    @Test
    fun `a push is shown as it says, once, and reported and acknowledged`() {
        val connection = app.start()
        connection.receive(push(1, """, "title": "T", "sound": true, "vibrate": true, "removable": false, "badge": 4"""))
        val shown = app.awaitShown(1)
        assertEquals("T", shown.extras.getString(Notification.EXTRA_TITLE))
        assertEquals("content 1", shown.extras.getCharSequence(Notification.EXTRA_TEXT).toString())
        assertEquals(Notification.FLAG_ONGOING_EVENT, shown.flags and Notification.FLAG_ONGOING_EVENT)
        assertEquals(Notification.FLAG_AUTO_CANCEL, shown.flags and Notification.FLAG_AUTO_CANCEL)
        assertEquals(listOf(4, listOf(4)), listOf(shown.number, app.badges))
        if (Build.VERSION.SDK_INT >= 26) {
            val channel = app.notifications.getNotificationChannel(shown.channelId)
            assertEquals(listOf("carillon-sound-vibrate", true, true), listOf(channel.id, channel.shouldVibrate(), channel.sound != null))
        } else {
            @Suppress("DEPRECATION")
            assertEquals(Notification.DEFAULT_SOUND or Notification.DEFAULT_VIBRATE, shown.defaults)
        }
        assertEquals("shown", connection.sent("report").getString("event"))
        assertEquals(JSONArray("[1]"), connection.sent("ack").getJSONArray("msgids"))
        app.notifications.cancelAll()
        assertTrue(Carillon.onMessage(mapOf("carillon" to push(1))))
        connection.receive(push(2, """, "badge": -1, "removable": true"""))
        val second = app.awaitShown(2)
        assertNull("it was shown before", app.shown(1))
        assertEquals(listOf(5, 0), listOf(second.number, second.flags and Notification.FLAG_ONGOING_EVENT))
        if (Build.VERSION.SDK_INT >= 26) {
            val channel = app.notifications.getNotificationChannel(second.channelId)
            assertEquals(listOf("carillon", false, null), listOf(channel.id, channel.shouldVibrate(), channel.sound))
        }
        Carillon.setBadge(0)
        until("the number") { app.badges.lastOrNull()?.takeIf { it == 0 } }
    }

    @Test
    fun `a message for the app alone shows nothing`() {
        val connection = app.start()
        connection.receive(push(1).replace("\"is_notif\": 1", "\"is_notif\": 0"))
        assertEquals("content 1", until("a message") { app.messages.firstOrNull() }.content)
        assertEquals("ack", connection.sent().getString("type"))
        assertEquals(0, shadowOf(app.notifications).size())
    }

    @Test
    fun `what the user has forbidden, and what the app shows itself, is not reported as shown`() {
        val connection = app.start()
        shadowOf(app.notifications).setNotificationsEnabled(false)
        connection.receive(push(1))
        assertEquals("ack", connection.sent().getString("type"))
        shadowOf(app.notifications).setNotificationsEnabled(true)
        app.showsItself = true
        connection.receive(push(2))
        assertEquals("ack", connection.sent().getString("type"))
        assertEquals(0, shadowOf(app.notifications).size())
    }

    @Test
    fun `a click is reported, told and carried out, a dismissal is reported`() {
        app.launcher()
        val connection = app.start()
        connection.receive(push(1, click(2, "\"https://example.org/p\"")), push(2, click(1)))
        clickOn(app.awaitShown(1))
        val opened = shadowOf(app.context).nextStartedActivity
        assertEquals(listOf(Intent.ACTION_VIEW, "https://example.org/p"), listOf(opened.action, opened.dataString))
        assertEquals(listOf(1L), app.clicks.map { it.msgid })
        app.opensClicks = true
        val second = app.awaitShown(2)
        clickOn(second)
        assertNull("the app opens it", shadowOf(app.context).nextStartedActivity)
        val dismissed = shadowOf(second.deleteIntent)
        assertTrue("no activity, so the user stays where he is", dismissed.isBroadcastIntent)
        PushReceiver().onReceive(app.context, dismissed.savedIntent)
        val reports = List(5) { connection.sent("report") }.map { "${it.getString("event")} ${it.getInt("msgid")}" }
        assertEquals(setOf("shown 1", "clicked 1", "shown 2", "clicked 2", "dismissed 2"), reports.toSet())
    }

    @Test
    fun `a click that starts the process is carried out, kept and reported after the start`() {
        app.launcher()
        val connection = app.start()
        connection.receive(push(1, click(1)))
        val shown = app.awaitShown(1)
        connection.sent("ack")
        app.stop()
        Carillon.handler = null
        clickOn(shown)
        assertEquals("org.example.Main", shadowOf(app.context).nextStartedActivity.component?.className)
        Carillon.forget() // the report outlives this process too
        Carillon.handler = app
        val reports = app.start().run { List(2) { sent("report") } }.map { it.getString("event") }
        assertTrue(reports.toString(), "clicked" in reports)
    }

    @Test
    fun `a click waits until the app listens`() {
        Carillon.handler = null
        app.launcher()
        Robolectric.buildActivity(ClickActivity::class.java, Intent().putExtra("carillon", push(4, click(1)))).create()
        assertEquals(emptyList<Any>(), app.clicks)
        Carillon.handler = app
        assertEquals(4L, until("the click") { app.clicks.singleOrNull() }.msgid)
    }

    @Test
    fun `the intent of a notification that the phone has shown opens web pages only, once`() {
        val connection = app.start()
        val activity = Robolectric.buildActivity(Activity::class.java).create().get()
        val intent = Intent().putExtra("carillon", push(1, click(2, "\"https://example.org/\"")))
        assertTrue(Carillon.onIntent(activity, intent))
        assertFalse(Carillon.onIntent(activity, intent))
        assertEquals("https://example.org/", shadowOf(app.context).nextStartedActivity.dataString)
        assertEquals("clicked", connection.sent("report").getString("event"))
        assertTrue(Carillon.onIntent(activity, Intent().putExtra("carillon", push(2, click(7, "\"https://evil.example/\"")))))
        assertFalse(Carillon.onIntent(activity, Intent().putExtra("carillon", "no push")))
        assertFalse(Carillon.onIntent(activity, null))
        assertNull(shadowOf(app.context).nextStartedActivity)
    }

    @Test
    fun `addresses are told over each connection`() {
        val connection = app.start()
        Carillon.setAddress("fcm", "a")
        assertEquals("a", connection.sent("set_address").getString("address"))
        Carillon.clearAddress("hms")
        assertEquals("hms", connection.sent("clear_address").getString("channel"))
        connection.lose()
        networks.networkCallbacks.forEach { it.onAvailable(ShadowNetwork.newInstance(1)) } // so it connects at once
        val again = app.gateway.welcome()
        assertEquals("a", again.sent("set_address").getString("address"))
        again.sent("clear_address")
    }

    @Test
    fun `another network, and an app that comes to the front, have the connection looked at`() {
        val connection = app.start()
        until("the welcome") { app.events.firstOrNull() }
        networks.networkCallbacks.single().onAvailable(ShadowNetwork.newInstance(1))
        connection.sent("ping")
        connection.receive("""{"type": "pong"}""")
        val activity = Robolectric.buildActivity(Activity::class.java).setup()
        assertEquals("open", connection.sent("activity").getString("event"))
        connection.sent("ping")
        activity.pause().stop()
    }

    @Test
    fun `a heartbeat wakes the phone, which stays awake until its answer`() {
        val connection = app.start()
        until("the welcome") { app.events.firstOrNull() }
        val alarm = until("an alarm") { alarms.scheduledAlarms.minByOrNull { it.triggerAtMs } }
        assertEquals(listOf(AlarmManager.ELAPSED_REALTIME_WAKEUP, true), listOf(alarm.type, alarm.isAllowWhileIdle))
        val intent = shadowOf(alarm.operation!!)
        assertTrue("it starts no process: no component of the manifest has it", intent.isBroadcastIntent && intent.savedIntent.component == null)
        assertEquals(app.context.packageName, intent.savedIntent.`package`)
        ShadowSystemClock.advanceBy(Duration.ofSeconds(900))
        alarm.operation!!.send()
        connection.sent("ping")
    }

    @Test
    fun `the phone stays awake from an alarm to the answer, and from a push to its acknowledgement`() {
        val awake = Awake(app.context)
        val timers = AlarmTimers(app.context, awake)
        timers.open {}
        val ended = ArrayList<String>()
        timers.schedule(900_000) { ended.add("heartbeat") }
        timers.schedule(10_000) { ended.add("deadline") }
        timers.schedule(20_000) { ended.add("cancelled") }.cancel()
        val alarm = alarms.scheduledAlarms.single()
        assertEquals("the short wait has an alarm of its own, as late as Doze allows", 550_000L, alarm.triggerAtMs - SystemClock.elapsedRealtime())
        ShadowSystemClock.advanceBy(Duration.ofSeconds(550)) // the phone has slept
        alarm.operation!!.send()
        until("the deadline") { ended.singleOrNull() }
        assertEquals(listOf("deadline"), ended)
        assertTrue(awake.answer.isHeld)
        val connection = WakefulConnector(app.gateway, awake).open("wss://push.example.org", "carillon.device.v1", NoReceiver)
        val gateway = app.gateway.opened.take()
        gateway.receive("""{"type": "pong"}""")
        assertFalse(awake.answer.isHeld || awake.handling.isHeld)
        gateway.receive(push(1))
        connection.send("""{"type":"report"}""")
        assertTrue(awake.handling.isHeld)
        connection.send("""{"type":"ack","msgids":[1]}""")
        assertFalse(awake.handling.isHeld)
        ShadowSystemClock.advanceBy(Duration.ofSeconds(350))
        alarms.scheduledAlarms.single().operation!!.send()
        assertEquals("heartbeat", until("the heartbeat") { ended.getOrNull(1) })
        timers.close()
        assertEquals(0, alarms.scheduledAlarms.size)
    }

    @Test
    fun `a vendor's message keeps the phone awake until it is acknowledged`() {
        val connection = app.start()
        until("the welcome") { app.events.firstOrNull() }
        val handling = ShadowPowerManager.getLatestWakeLock()
        assertFalse(handling.isHeld)
        assertTrue(Carillon.onMessage(mapOf("carillon" to push(1).replace("content 1", "")), "title", "content"))
        assertTrue(handling.isHeld)
        assertEquals("content", app.awaitShown(1).extras.getCharSequence(Notification.EXTRA_TEXT).toString())
        connection.sent("ack")
        until("sleep") { true.takeIf { !handling.isHeld } }
        connection.lose()
        app.stop()
        assertTrue(Carillon.onMessage(mapOf("carillon" to push(2))))
        app.start()
        assertTrue("one of before the start too", ShadowPowerManager.getLatestWakeLock().isHeld)
    }

    private object NoReceiver : Connector.Receiver {
        override fun onOpen() {}

        override fun onTexts(texts: List<String>) {}

        override fun onClosed(reason: String) {}
    }

    @Test
    fun `the user is asked for the permission where Android has it`() {
        val activity = Robolectric.buildActivity(Activity::class.java).setup().get()
        val isAsked = Build.VERSION.SDK_INT >= 33
        assertEquals(!isAsked, Carillon.requestPermission(activity, 5))
        val asked = shadowOf(activity).lastRequestedPermission
        assertEquals(isAsked, asked != null && Manifest.permission.POST_NOTIFICATIONS in asked.requestedPermissions)
        shadowOf(app.context).grantPermissions(Manifest.permission.POST_NOTIFICATIONS)
        assertTrue(Carillon.requestPermission(activity, 5))
    }

    @Test
    fun `the attributes by which pushes are filtered are those of the phone`() {
        val attributes = Carillon.attributes(app.context)
        assertEquals(listOf(Build.BRAND, Build.MODEL), listOf(attributes["brand"], attributes["model"]))
        assertTrue(attributes.keys.containsAll(listOf("os_version", "resolution", "sdk_version")))
    }

    @Test
    fun `the service is in the foreground at once, and is not started again by Android`() {
        val service = Robolectric.buildService(ConnectionService::class.java).create().get()
        assertNotNull(shadowOf(service).lastForegroundNotification)
        assertEquals(Service.START_NOT_STICKY, service.onStartCommand(null, 0, 1))
        assertTrue(ConnectionService.start(app.context))
        assertEquals(ConnectionService::class.java.name, shadowOf(app.context).nextStartedService.component?.className)
    }

    private fun clickOn(notification: Notification) {
        val intent = shadowOf(notification.contentIntent)
        assertTrue("no trampoline", intent.isActivityIntent && intent.flags and PendingIntent.FLAG_IMMUTABLE != 0)
        assertEquals(ClickActivity::class.java.name, intent.savedIntent.component?.className)
        val activity = Robolectric.buildActivity(ClickActivity::class.java, intent.savedIntent).create().get()
        assertTrue(activity.isFinishing)
    }

    private fun threads() = Thread.getAllStackTraces().keys.filter { it.name.startsWith("carillon") }.toSet()
}
