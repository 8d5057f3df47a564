package dev.carillon.android

import android.content.ComponentName
import android.content.Intent
import android.net.Uri
import dev.carillon.device.Push
import java.io.File
import kotlin.random.Random
import org.json.JSONArray
import org.json.JSONObject
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner

private const val OPEN = "org.example.Open"
private const val INNER = "org.example.Inner"
private const val OTHER = "com.other.app"
private const val CASES = 1000

/** What a click opens: an exported activity of the app itself, a web page, a page of the SDK's, and nothing else. */
@RunWith(RobolectricTestRunner::class)
class ClicksTest {
    @get:Rule
    internal val app = App()
    private val own get() = app.context.packageName

    @Before
    fun install() {
        app.launcher()
        app.install(OPEN, isExported = true, scheme = "myapp")
        app.install(INNER, isExported = false, scheme = "inner")
        app.install("$OTHER.Main", isExported = true, scheme = "other", packageName = OTHER)
        app.install("$OTHER.Browser", isExported = true, scheme = "https", packageName = OTHER)
    }

    @Test
    fun `each click action opens what the shared vectors say`() {
        val vectors = JSONArray(File(System.getProperty("vectors"), "clicks.json").readText())
        for (index in 0 until vectors.length()) {
            val vector = vectors.getJSONObject(index)
            val fields = if (vector.isNull("click")) "" else """, "click": ${vector["click"]}"""
            val push = Push.fromJson(push(1, fields).replace("content 1", "the content"))!!
            assertEquals(vector.getString("what"), plain(vector["android"]), opened(push))
        }
    }

    @Test
    fun `what is missing, malformed or of a later version opens the app`() {
        val clicks = listOf(click(2), click(2, "7"), click(2, "\"\""), click(3), click(3, "{}"), click(4), click(4, "{}"), click(5, "\"x\""), click(6, "{\"information\": 7}"), click(7, "{\"url\": 7}"), click(8), click(99, "\"x\""))
        for (each in clicks) assertLaunches(clicked(each))
        val addresses = listOf("javascript:alert(1)", "file:///etc/hosts", "content://x/y", "intent://x#Intent;end", "tel:112", "https:", "https://", "//example.org", "x".repeat(9000))
        for (address in addresses) assertLaunches(clicked(click(2, "\"$address\"")))
    }

    @Test
    fun `the web addresses of the shared vectors are opened, and no other value`() {
        val shared = JSONObject(File(System.getProperty("vectors"), "web_addresses.json").readText())
        val (opened, refused) = listOf(shared.getJSONArray("opened"), shared.getJSONArray("refused"))
        for (index in 0 until opened.length()) {
            val (text, address) = opened.getJSONArray(index).run { getString(0) to getString(1) }
            assertEquals(text, address, clicked(click(2, JSONObject.quote(text)))?.dataString)
        }
        for (index in 0 until refused.length()) {
            val value = refused.get(index)
            assertLaunches(clicked(click(2, if (value is String) JSONObject.quote(value) else "$value")))
        }
    }

    @Test
    fun `an intent has its action, data and extras, by each form of its text`() {
        val text = "intent://page/7#Intent;scheme=myapp;action=android.intent.action.VIEW;S.name=value;i.count=3;end"
        val opened = ownActivity(app.context, text)!!
        assertEquals(ComponentName(own, OPEN), opened.component)
        assertEquals(listOf("myapp://page/7", "value", 3), listOf(opened.dataString, opened.getStringExtra("name"), opened.getIntExtra("count", 0)))
        assertEquals(OPEN, ownActivity(app.context, "myapp://page/7")?.component?.className)
        assertEquals(OPEN, ownActivity(app.context, "#Intent;component=$own/$OPEN;end")?.component?.className)
        assertEquals(OPEN, ownActivity(app.context, Intent().setClassName(own, OPEN).toUri(Intent.URI_INTENT_SCHEME))?.component?.className)
    }

    @Test
    fun `an intent opens neither another app nor a part of the app that others cannot open`() {
        val refused = listOf(
            "intent:#Intent;component=$own/$INNER;end", "inner://x", "intent:#Intent;component=$own/dev.carillon.android.PageActivity;end",
            "intent:#Intent;component=$OTHER/$OTHER.Main;end", "other://x", "https://example.org/", "intent:#Intent;package=$OTHER;component=$own/$OPEN;end",
            "intent://x#Intent;scheme=other;end", "intent:#Intent;component=$own/org.example.None;end", "intent:#Intent;i.count=x;end", "intent:#Intent;", "S.a=b;#Intent;i.a=1", "myapp://x#Intent;S.a=b",
            "android-app://$OTHER/https/example.org", "", "x".repeat(9000),
        )
        for (text in refused) assertNull(text, ownActivity(app.context, text))
    }

    @Test
    fun `an intent carries no selector, clip data, flags or rights`() {
        val hidden = Intent().setClassName(own, OPEN).addFlags(Intent.FLAG_GRANT_READ_URI_PERMISSION or Intent.FLAG_ACTIVITY_CLEAR_TASK)
        val opened = ownActivity(app.context, hidden.toUri(Intent.URI_INTENT_SCHEME).replace("end", "SEL;component=$OTHER/$OTHER.Main;end"))!!
        assertSafe(opened)
    }

    @Test
    fun `no text makes an intent that opens more than it may`() {
        val random = Random(1)
        val parts = listOf(
            "intent:", "#Intent;", "end", ";", "SEL;", "component=", "$own/$OPEN", "$own/$INNER", "$OTHER/$OTHER.Main", "package=", own, OTHER, "scheme=",
            "myapp", "inner", "other", "https", "://", "launchFlags=0x3", "action=android.intent.action.VIEW", "category=android.intent.category.DEFAULT",
            "S.a=b", "i.a=1", "i.a=x", "B.a=", "sourceBounds=1 2 3 4", "type=text/plain", "identifier=x", "android-app://", "#", "%", "%00", "=", "/", "\u0000", "\ud800", "é",
        )
        var opened = 0
        repeat(CASES) {
            val loose = buildString { repeat(random.nextInt(1, 14)) { append(parts.random(random)) } }
            val fields = List(random.nextInt(1, 5)) { FIELDS.random(random) }.joinToString(";")
            val text = if (random.nextBoolean()) loose else "intent:#Intent;${fields.replace("OWN", own)};end"
            ownActivity(app.context, text)?.let {
                opened++
                assertSafe(it)
            }
            webAddress(text)?.let { assertTrue(text, it.scheme in setOf("http", "https")) }
        }
        assertTrue("$opened of $CASES texts open something", opened in 1 until CASES)
    }

    @Test
    fun `no click parameter breaks the parser`() {
        val random = Random(2)
        fun value(depth: Int): String = when (random.nextInt(if (depth > 3) 6 else 8)) {
            0 -> "null"
            1 -> "true"
            2 -> listOf("0", "1", "2", "-1", "61", "1e300", "9223372036854775807").random(random)
            3 -> "\"https://example.org/\""
            4 -> "\"file:///x\""
            5 -> listOf("\"\"", "\"1\"", "\"\\ud800\"").random(random)
            6 -> List(random.nextInt(9)) { value(depth + 1) }.joinToString(",", "[", "]")
            else -> NAMES.shuffled(random).take(random.nextInt(NAMES.size)).joinToString(",", "{", "}") { "\"$it\": ${value(depth + 1)}" }
        }
        var pages = 0
        repeat(CASES) {
            val text = push(1, click(random.nextInt(0, 10), value(0)))
            val push = Push.fromJson(text)!!
            clickIntent(app.context, push)
            val page = Page.of(push) ?: return@repeat
            pages++
            for (link in links(page)) assertTrue(text, link.scheme in setOf("http", "https"))
            if (page is LandingPage) assertTrue(text, (page.seconds ?: 1) in 1..60)
            if (page is InformationFlow) assertTrue(text, page.articles.size in 1..7)
        }
        assertTrue("$pages of $CASES are pages", pages in 1 until CASES)
    }

    @Test
    fun `a push that is too long for an intent is cut, and its click is kept`() {
        val long = Push.fromJson(push(1, click(2, "\"https://example.org/\"")).replace("content 1", "x".repeat(700_000)))!!
        val cut = Push.fromJson(extraOf(long))!!
        assertTrue(extraOf(long).length < 100_000)
        assertEquals(listOf(2, "https://example.org/", 1L), listOf(cut.clickAction, cut.clickParam, cut.msgid))
        val huge = Push.fromJson(push(1, click(4, "{\"picture-addr\": \"${"x".repeat(200_000)}\"}")))!!
        assertNotNull(Push.fromJson(extraOf(huge)))
        assertFalse(extraOf(huge).length > 100_000)
    }

    private fun opened(push: Push): Map<String, Any?> {
        val intent = clickIntent(app.context, push) ?: return mapOf("opens" to "nothing")
        return when (intent.component?.className) {
            null -> mapOf("opens" to "browser", "url" to intent.dataString)
            "org.example.Main" -> mapOf("opens" to "app")
            OPEN -> {
                val extras = intent.extras?.run { keySet().associateWith { getString(it) } }
                mapOf("opens" to "activity", "url" to intent.dataString, "extras" to extras)
            }
            else -> described(Page.of(Push.fromJson(intent.getStringExtra(PUSH)!!)!!)!!)
        }
    }

    private fun described(page: Page): Map<String, Any?> = when (page) {
        is LandingPage -> mapOf(
            "opens" to "landing page", "picture" to page.picture?.toString(), "link" to page.link?.toString(),
            "skip_button" to page.hasSkipButton, "seconds" to page.seconds, "tip" to page.tip,
            "tip_link" to page.tipLink?.toString(), "wifi_only" to page.isWifiOnly,
        )
        is PopUp -> mapOf(
            "opens" to "pop-up", "title" to page.title, "text" to page.text, "picture" to page.picture?.toString(),
            "link" to page.link?.toString(), "tip" to page.tip, "tip_link" to page.tipLink?.toString(),
            "wifi_only" to page.isWifiOnly,
        )
        is InformationFlow -> mapOf(
            "opens" to "information flow", "title" to page.title, "single_article" to page.isSingleArticle,
            "wifi_only" to page.isWifiOnly,
            "articles" to page.articles.map {
                mapOf("title" to it.title, "picture" to it.picture?.toString(), "abstract" to it.abstract, "text" to it.text)
            },
        )
        is RichMediaPage -> mapOf("opens" to "rich media", "url" to page.url.toString())
    }

    /** A value of JSON as Kotlin's collections, which are equal where the values are. */
    private fun plain(value: Any?): Any? = when (value) {
        JSONObject.NULL -> null
        is JSONObject -> value.keys().asSequence().associateWith { plain(value[it]) }
        is JSONArray -> List(value.length()) { plain(value[it]) }
        else -> value
    }

    private fun clicked(fields: String): Intent? = clickIntent(app.context, Push.fromJson(push(1, fields))!!)

    private fun assertLaunches(intent: Intent?) {
        assertEquals(ComponentName(own, "org.example.Main"), intent?.component)
    }

    private fun assertSafe(intent: Intent) {
        assertTrue("$intent", intent.component in setOf(ComponentName(own, OPEN), ComponentName(own, "org.example.Main")))
        assertNull(intent.selector)
        assertNull(intent.clipData)
        assertEquals(Intent.FLAG_ACTIVITY_NEW_TASK, intent.flags)
    }

    private fun links(page: Page): List<Uri> = when (page) {
        is LandingPage -> listOfNotNull(page.picture, page.link, page.tipLink)
        is PopUp -> listOfNotNull(page.picture, page.link, page.tipLink)
        is InformationFlow -> page.articles.mapNotNull { it.picture }
        is RichMediaPage -> listOf(page.url)
    }

    private companion object {
        val FIELDS = listOf(
            "component=OWN/$OPEN", "component=OWN/$INNER", "component=$OTHER/$OTHER.Main", "package=OWN", "package=$OTHER", "scheme=myapp", "SEL",
            "action=android.intent.action.VIEW", "launchFlags=0x3", "S.a=b", "i.a=1", "i.a=x", "sourceBounds=1 2 3 4", "type=text/plain", "x",
        )
        val NAMES = listOf(
            "picture-addr", "picture_addr", "picture-hyperlink", "jump-button", "jump-seconds", "tip-content", "tip-url", "download-condition",
            "popup-mode", "title", "flow-mode", "top-title", "information", "text-abstract", "text-detail", "url",
        )
    }
}
