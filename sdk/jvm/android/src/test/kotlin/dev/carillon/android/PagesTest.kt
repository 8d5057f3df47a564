package dev.carillon.android

import android.app.Activity
import android.content.Intent
import android.net.ConnectivityManager
import android.net.NetworkCapabilities
import android.os.Looper
import android.view.View
import android.view.ViewGroup
import android.webkit.WebView
import android.widget.Button
import android.widget.ImageView
import android.widget.TextView
import com.sun.net.httpserver.HttpServer
import java.io.IOException
import java.net.InetAddress
import java.net.InetSocketAddress
import java.time.Duration
import java.util.Base64
import java.util.concurrent.atomic.AtomicInteger
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.shadows.ShadowNetworkCapabilities

/** A picture of one pixel; what follows it in a file is ignored. */
private val PNG: ByteArray = Base64.getDecoder().decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
)

/** The pages of the click actions 4 to 7, by the SDK's own views and by the app's. */
@RunWith(RobolectricTestRunner::class)
class PagesTest {
    @get:Rule
    internal val app = App()
    private val asked = AtomicInteger()
    private val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0).apply {
        createContext("/") { exchange ->
            asked.incrementAndGet()
            val size = exchange.requestURI.path.trim('/').toInt()
            exchange.sendResponseHeaders(if (size == 0) 404 else 200, if (size == 0) -1 else size.toLong())
            if (size > 0) runCatching { exchange.responseBody.use { it.write(PNG.copyOf(size)) } } else exchange.close()
        }
        start()
    }

    @After
    fun stop() = server.stop(0)

    @Test
    fun `a landing page has picture, tip and button, and closes by itself`() {
        val page = show(4, """{"picture-addr": "${picture(200)}", "picture-hyperlink": "https://example.org/p", "tip-content": "More", "tip-url": "https://example.org/tip"}""")
        val image = until("the picture") { page.views<ImageView>().single().takeIf { it.drawable != null && it.visibility == View.VISIBLE } }
        image.performClick()
        assertEquals("https://example.org/p", opened())
        page.views<TextView>().single { it.text.toString() == "More" }.performClick()
        assertEquals("https://example.org/tip", opened())
        val short = show(4, """{"picture-addr": "${picture(200)}", "jump-seconds": 5}""")
        shadowOf(Looper.getMainLooper()).idleFor(Duration.ofSeconds(4))
        assertFalse(short.get().isFinishing)
        shadowOf(Looper.getMainLooper()).idleFor(Duration.ofSeconds(1))
        assertTrue(short.get().isFinishing)
        val other = show(4, """{"picture-addr": "${picture(200)}", "jump-button": 1}""")
        other.views<Button>().single().performClick()
        assertTrue(other.get().isFinishing)
        assertEquals(0, show(4, """{"picture_addr": "${picture(200)}", "jump-button": 0}""").views<Button>().size)
    }

    @Test
    fun `a pop-up has title and text in mode 2 alone`() {
        val fields = """"title": "Sale", "picture-addr": "${picture(200)}""""
        assertEquals(setOf("Sale", "content 1", "\u2715"), show(5, """{"popup-mode": 2, $fields}""").texts())
        assertEquals(setOf("\u2715"), show(5, """{"popup-mode": 1, $fields}""").texts())
    }

    @Test
    fun `an information flow lists articles, and shows the text of one`() {
        val articles = """[{"title": "One", "text-abstract": "short", "text-detail": "long"}, {"title": "Two"}]"""
        assertEquals(setOf("Today", "One", "Two"), show(6, """{"flow-mode": 2, "top-title": "Today", "information": $articles}""").texts())
        val page = show(6, """{"flow-mode": 1, "information": $articles}""")
        assertEquals(setOf("One", "short", "Two"), page.texts())
        (page.views<TextView>().single { it.text.toString() == "One" }.parent as View).performClick()
        val article = shadowOf(page.get()).nextStartedActivity
        assertEquals(setOf("One", "long"), started(article).texts())
    }

    @Test
    fun `a rich-media page is the web page, which reaches nothing of the app`() {
        val page = show(7, """{"url": "https://example.org/rich"}""")
        val web = page.views<WebView>().single()
        assertEquals("https://example.org/rich", shadowOf(web).lastLoadedUrl)
        assertFalse(web.settings.allowFileAccess || web.settings.allowContentAccess)
        page.destroy()
        assertTrue(shadowOf(web).wasDestroyCalled())
    }

    @Test
    fun `the system's bars cover no page`() {
        val picture = """{"picture-addr": "${picture(200)}"}"""
        val articles = """{"flow-mode": 1, "information": [{"title": "One", "text-detail": "long"}]}"""
        for ((action, param) in listOf(4 to picture, 5 to picture, 6 to articles, 7 to """{"url": "https://example.org/rich"}""")) {
            assertTrue("$action", show(action, param).get().findViewById<ViewGroup>(android.R.id.content).getChildAt(0).fitsSystemWindows)
        }
    }

    @Test
    fun `the app's own view takes the place of the SDK's`() {
        var seen: Page? = null
        Carillon.handler = object : PushHandler by app {
            override fun view(activity: Activity, page: Page): View = TextView(activity).apply {
                seen = page
                text = "own"
            }
        }
        assertEquals(setOf("own"), show(4, """{"picture-addr": "${picture(200)}"}""").texts())
        assertEquals(1L, (seen as LandingPage).push.msgid)
        assertEquals(0, asked.get())
    }

    @Test
    fun `an intent without a page opens nothing`() {
        assertTrue(Robolectric.buildActivity(PageActivity::class.java, Intent()).create().get().isFinishing)
    }

    @Test
    fun `pictures of a page for Wi-Fi are fetched over Wi-Fi alone`() {
        val networks = app.context.getSystemService(ConnectivityManager::class.java)
        val mobile = ShadowNetworkCapabilities.newInstance()
        shadowOf(mobile).addTransportType(NetworkCapabilities.TRANSPORT_CELLULAR)
        shadowOf(networks).setNetworkCapabilities(networks.activeNetwork, mobile)
        val page = show(4, """{"picture-addr": "${picture(200)}", "download-condition": 1}""")
        shadowOf(mobile).addTransportType(NetworkCapabilities.TRANSPORT_WIFI)
        val onWifi = show(4, """{"picture-addr": "${picture(200)}", "download-condition": 1}""")
        until("the picture") { onWifi.views<ImageView>().single().drawable }
        assertEquals(listOf(1, null), listOf(asked.get(), page.views<ImageView>().single().drawable))
    }

    @Test
    fun `a picture of more than 500 KB, and one that is not there, is not shown`() {
        assertEquals(500 * 1024, fetchPicture(picture(500 * 1024)).size)
        assertThrows(IOException::class.java) { fetchPicture(picture(500 * 1024 + 1)) }
        assertThrows(IOException::class.java) { fetchPicture(picture(0)) }
    }

    private fun picture(bytes: Int) = "http://127.0.0.1:${server.address.port}/$bytes"

    private fun show(action: Int, param: String): ActivityController<PageActivity> =
        started(clickIntent(app.context, dev.carillon.device.Push.fromJson(push(1, click(action, param)))!!)!!)

    private fun started(intent: Intent) = Robolectric.buildActivity(PageActivity::class.java, intent).setup()

    private fun opened(): String? = shadowOf(app.context).nextStartedActivity?.dataString

    private inline fun <reified T : View> ActivityController<PageActivity>.views(): List<T> =
        all(get().findViewById(android.R.id.content)).filterIsInstance<T>()

    private fun ActivityController<PageActivity>.texts(): Set<String> =
        views<TextView>().filter { it.visibility == View.VISIBLE }.map { it.text.toString() }.toSet()

    private fun all(view: View): List<View> =
        listOf(view) + if (view is ViewGroup) (0 until view.childCount).flatMap { all(view.getChildAt(it)) } else emptyList()
}
