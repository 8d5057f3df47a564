package dev.carillon.android

import dev.carillon.device.DeviceConfig
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf

/**
 * An app on a gateway that runs, which another program starts with the properties `url` and `appkey`, on the Android that
 * `robolectric.enabledSdks` names: it says its token, shows a notification, and clicks on it.
 */
@RunWith(RobolectricTestRunner::class)
class GatewayRun {
    @get:Rule
    internal val app = App()

    @Test
    fun `a push of the service is shown and clicked`() {
        app.launcher()
        Carillon.start(app.context, DeviceConfig(System.getProperty("url"), System.getProperty("appkey")))
        say("token ${until("a token") { Carillon.device?.token }}")
        val notifications = shadowOf(app.notifications)
        val shown = until("a notification") { notifications.allNotifications.firstOrNull() }
        say("shown ${shown.extras.getCharSequence("android.text")}")
        val intent = shadowOf(shown.contentIntent).savedIntent
        Robolectric.buildActivity(ClickActivity::class.java, intent).create()
        say("opened ${shadowOf(app.context).nextStartedActivity.dataString}")
        assertTrue("the other program says when it has seen the click", readln() == "seen")
    }

    /** On a line of its own: JUnit writes to the same output. */
    private fun say(text: String) = println("\n$text")
}
