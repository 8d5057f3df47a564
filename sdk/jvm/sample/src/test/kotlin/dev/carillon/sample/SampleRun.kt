package dev.carillon.sample

import android.Manifest
import android.app.NotificationManager
import android.content.Intent
import android.net.Uri
import android.os.Looper
import android.view.View
import android.view.ViewGroup
import android.widget.EditText
import android.widget.TextView
import dev.carillon.android.Carillon
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf

private const val TRIES = 12_000
private const val PAUSE_MS = 5L

/**
 * The sample app on an Android, at a gateway that another program runs: the property `link` opens the app, which connects,
 * asks for the permission, and shows a notification and a message.
 */
@RunWith(RobolectricTestRunner::class)
class SampleRun {
    private val app get() = RuntimeEnvironment.getApplication() as SampleApp
    private val notifications get() = shadowOf(app.getSystemService(NotificationManager::class.java))

    @Test
    fun `a link connects the app, which shows what comes`() {
        shadowOf(app).denyPermissions(Manifest.permission.POST_NOTIFICATIONS)
        val page = Robolectric.buildActivity(MainActivity::class.java, link(System.getProperty("link"))).setup()
        val activity = page.get()
        assertEquals(listOf(Manifest.permission.POST_NOTIFICATIONS), shadowOf(activity).lastRequestedPermission.requestedPermissions.toList())
        shadowOf(app).grantPermissions(Manifest.permission.POST_NOTIFICATIONS)
        say("connecting")
        untilTrue("the state") { activity.shows("State: connected\n") }
        assertTrue(activity.shows("Alias: alice"))
        say("token ${Carillon.device?.token}")

        val shown = until("a notification") { notifications.allNotifications.firstOrNull() }
        say("shown ${shown.extras.getCharSequence("android.text")}")
        untilTrue("the message") { activity.shows("message 6:  for the app alone") }
        assertTrue(activity.shows("notification 5:"))

        page.newIntent(link("carillon://connect?url=ws%3A%2F%2Fother.example.org%2F&appkey=2000000002&alias=bob"))
        val fields = activity.views().filterIsInstance<EditText>().map { "${it.text}" }
        assertEquals(listOf("ws://other.example.org/", "2000000002", "bob"), fields)
        assertEquals("alice", app.alias)
        assertTrue("a later link moves no connection", activity.shows("State: connected\n"))
        say("fields $fields")
    }

    private fun link(text: String) = Intent(Intent.ACTION_VIEW, Uri.parse(text))

    private fun MainActivity.views(): List<View> = all(window.decorView)

    private fun all(view: View): List<View> =
        listOf(view) + ((view as? ViewGroup)?.let { group -> (0 until group.childCount).flatMap { all(group.getChildAt(it)) } }.orEmpty())

    private fun MainActivity.shows(text: String): Boolean = views().any { it is TextView && text in it.text }

    private fun untilTrue(what: String, isThere: () -> Boolean) {
        until<Unit>(what) { Unit.takeIf { isThere() } }
    }

    private fun <T : Any> until(what: String, found: () -> T?): T {
        repeat(TRIES) {
            shadowOf(Looper.getMainLooper()).idle()
            found()?.let { return it }
            Thread.sleep(PAUSE_MS)
        }
        throw AssertionError("$what did not come")
    }

    /** On a line of its own: JUnit writes to the same output. */
    private fun say(text: String) = println("\n$text")
}
