package dev.carillon.android

import android.app.Activity
import android.content.Context
import android.content.Intent
import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.net.ConnectivityManager
import android.net.NetworkCapabilities
import android.net.Uri
import android.os.Bundle
import android.os.Handler
import android.os.Looper
import android.os.SystemClock
import android.util.Log
import android.view.Gravity
import android.view.View
import android.view.ViewGroup
import android.webkit.WebResourceRequest
import android.webkit.WebView
import android.webkit.WebViewClient
import android.widget.Button
import android.widget.FrameLayout
import android.widget.ImageView
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import dev.carillon.device.Push
import java.io.ByteArrayOutputStream
import java.io.IOException
import java.net.HttpURLConnection
import java.net.URL
import kotlin.concurrent.thread

private const val MAX_SECONDS = 60L
private const val MAX_PICTURE_BYTES = 500 * 1024
private const val MAX_PICTURE_PIXELS = 2048
private const val CONNECT_MS = 10_000
private const val PICTURE_MS = 30_000L
private const val ARTICLE = "article"

/**
 * What a click of the actions 4 to 7 shows. Links and pictures are addresses that begin with http:// or https://; what
 * the sender left out is null. With `isWifiOnly` pictures are downloaded over Wi-Fi alone.
 */
public sealed class Page(public val push: Push, public val isWifiOnly: Boolean) {
    internal companion object {
        /** Returns the page of a push; null if it has none, or if what the page needs is missing. */
        fun of(push: Push): Page? {
            val fields = PageFields(push.clickParam as? Map<*, *> ?: mapOf("url" to push.clickParam))
            return when (push.clickAction) {
                LANDING_PAGE -> LandingPage(push, fields).takeIf { it.picture != null }
                POP_UP -> PopUp(push, fields).takeIf { it.picture != null }
                INFORMATION_FLOW -> InformationFlow(push, fields).takeIf { it.articles.isNotEmpty() }
                RICH_MEDIA -> fields.link("url")?.let { RichMediaPage(push, it) }
                else -> null
            }
        }
    }
}

/** A picture that fills the screen, with a tip below it. It closes after `seconds`, or earlier by a button. */
public class LandingPage internal constructor(push: Push, fields: PageFields) : Page(push, fields.isWifiOnly) {
    public val picture: Uri? = fields.link("picture-addr")
    public val link: Uri? = fields.link("picture-hyperlink")
    public val hasSkipButton: Boolean = fields.number("jump-button") == 1L
    public val seconds: Int? = fields.number("jump-seconds")?.takeIf { it in 1..MAX_SECONDS }?.toInt()
    public val tip: String? = fields.text("tip-content")
    public val tipLink: Uri? = fields.link("tip-url")
}

/** A picture in a window over the screen; with `title` and `text` it shows these too. */
public class PopUp internal constructor(push: Push, fields: PageFields) : Page(push, fields.isWifiOnly) {
    private val hasText = fields.number("popup-mode") == 2L
    public val title: String? = fields.text("title").takeIf { hasText }
    public val text: String? = push.content.takeIf { hasText && it.isNotEmpty() }
    public val picture: Uri? = fields.link("picture-addr")
    public val link: Uri? = fields.link("picture-hyperlink")
    public val tip: String? = fields.text("tip-content")
    public val tipLink: Uri? = fields.link("tip-url")
}

/** Articles in a list, with their abstracts in `isSingleArticle` mode; a click on one shows its text. */
public class InformationFlow internal constructor(push: Push, fields: PageFields) : Page(push, fields.isWifiOnly) {
    public val title: String? = fields.text("top-title")
    public val isSingleArticle: Boolean = fields.number("flow-mode") == 1L
    public val articles: List<Article> = fields.all("information").take(MAX_ARTICLES).map(::Article)

    private companion object {
        const val MAX_ARTICLES = 7
    }
}

/** An article of an `InformationFlow`. */
public class Article internal constructor(fields: PageFields) {
    public val title: String? = fields.text("title")
    public val picture: Uri? = fields.link("picture-addr")
    public val abstract: String? = fields.text("text-abstract")
    public val text: String? = fields.text("text-detail")
}

/** A web page within the app. */
public class RichMediaPage internal constructor(push: Push, public val url: Uri) : Page(push, false)

/** The fields of a click's parameter, whose types are not to be trusted. One sender writes _ in a name instead of -. */
internal class PageFields(private val fields: Map<*, *>) {
    val isWifiOnly: Boolean get() = number("download-condition") == 1L

    private fun field(name: String): Any? = fields[name] ?: fields[name.replace('-', '_')]

    fun text(name: String): String? = (field(name) as? String)?.takeIf { it.isNotBlank() }

    fun number(name: String): Long? = field(name).let { (it as? Number)?.toLong() ?: (it as? String)?.toLongOrNull() }

    fun link(name: String): Uri? = webAddress(field(name))

    fun all(name: String): List<PageFields> =
        (field(name) as? List<*>).orEmpty().filterIsInstance<Map<*, *>>().map(::PageFields)
}

/** Shows a page, by the app's own view or by the SDK's. Only the SDK's own notifications start it. */
public class PageActivity : Activity() {
    private val handler = Handler(Looper.getMainLooper())
    private var web: WebView? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        val page = intent.textExtra(PUSH)?.let { Push.fromJson(it) }?.let { Page.of(it) }
        if (page is PopUp) setTheme(android.R.style.Theme_DeviceDefault_Light_Dialog_NoActionBar)
        super.onCreate(savedInstanceState)
        if (page == null) return finish()
        val article = (page as? InformationFlow)?.articles?.getOrNull(intent.getIntExtra(ARTICLE, -1))
        val appsOwn = if (article == null) Carillon.handler?.view(this, page) else null
        val view = appsOwn ?: (if (article != null) detail(article, page) else view(page)).apply {
            fitsSystemWindows = true // from Android 15 on windows reach below the system's bars
        }
        setContentView(view)
        val seconds = (page as? LandingPage)?.seconds ?: return
        handler.postDelayed({ finish() }, seconds * 1000L)
    }

    override fun onDestroy() {
        handler.removeCallbacksAndMessages(null)
        web?.destroy()
        super.onDestroy()
    }

    private fun view(page: Page): View = when (page) {
        is LandingPage -> FrameLayout(this).apply {
            addView(picture(page.picture, page, page.link).apply { scaleType = ImageView.ScaleType.CENTER_CROP })
            addView(tip(page.tip, page.tipLink), corner(Gravity.BOTTOM or Gravity.CENTER_HORIZONTAL))
            if (page.hasSkipButton) addView(closeButton(), corner(Gravity.TOP or Gravity.END))
        }
        is PopUp -> column(
            text(page.title, HEADLINE_SP), picture(page.picture, page, page.link), text(page.text, TEXT_SP),
            tip(page.tip, page.tipLink), closeButton(),
        )
        is InformationFlow -> column(
            text(page.title, HEADLINE_SP), *page.articles.mapIndexed { index, each -> entry(index, each, page) }.toTypedArray(),
        )
        is RichMediaPage -> FrameLayout(this).apply { addView(webView(page.url).also { web = it }) } // which itself has no padding
    }

    private fun entry(index: Int, article: Article, page: InformationFlow): View {
        val entry = rows(
            picture(article.picture, page, null), text(article.title, TITLE_SP),
            text(article.abstract.takeIf { page.isSingleArticle }, TEXT_SP),
        )
        if (article.text != null) {
            entry.setOnClickListener { startActivity(intent(this, page.push).putExtra(ARTICLE, index)) }
        }
        return entry
    }

    private fun detail(article: Article, page: Page): View =
        column(text(article.title, HEADLINE_SP), picture(article.picture, page, null), text(article.text, TEXT_SP))

    private fun column(vararg views: View): View =
        ScrollView(this).apply {
            isFillViewport = true
            addView(rows(*views))
        }

    private fun rows(vararg views: View) = LinearLayout(this).apply {
        orientation = LinearLayout.VERTICAL
        for (view in views) addView(view, LinearLayout.LayoutParams(ViewGroup.LayoutParams.MATCH_PARENT, ViewGroup.LayoutParams.WRAP_CONTENT))
    }

    private fun text(text: String?, sizeSp: Float) = TextView(this).apply {
        this.text = text
        textSize = sizeSp
        val space = (SPACE_DP * resources.displayMetrics.density).toInt()
        setPadding(space, space, space, space)
        if (text == null) visibility = View.GONE
    }

    private fun tip(tip: String?, link: Uri?) = text(tip, TEXT_SP).also { view -> opens(view, link) }

    private fun picture(address: Uri?, page: Page, link: Uri?) = ImageView(this).apply {
        adjustViewBounds = true
        visibility = View.GONE
        opens(this, link)
        if (address != null && (!page.isWifiOnly || isOnWifi(context))) {
            loadPicture(address) { picture ->
                setImageBitmap(picture)
                visibility = View.VISIBLE
            }
        }
    }

    /** Sets what a click on the view opens. */
    private fun opens(view: View, link: Uri?) {
        if (link != null) view.setOnClickListener { open(this, webPage(link.toString()) ?: return@setOnClickListener) }
    }

    private fun closeButton() = Button(this).apply {
        text = "\u2715"
        contentDescription = this@PageActivity.getString(android.R.string.cancel)
        setOnClickListener { finish() }
    }

    private fun corner(gravity: Int) =
        FrameLayout.LayoutParams(ViewGroup.LayoutParams.WRAP_CONTENT, ViewGroup.LayoutParams.WRAP_CONTENT, gravity)

    internal companion object {
        private const val HEADLINE_SP = 22f
        private const val TITLE_SP = 18f
        private const val TEXT_SP = 16f
        private const val SPACE_DP = 12

        fun intent(context: Context, push: Push): Intent =
            Intent(context, PageActivity::class.java).putExtra(PUSH, extraOf(push)).addFlags(Intent.FLAG_ACTIVITY_NEW_TASK)
    }
}

/** A web page, without a way to the app's files or functions; links of other schemes open nothing. */
@Suppress("SetJavaScriptEnabled") // what the sender's own pages need
private fun Activity.webView(address: Uri): WebView = WebView(this).apply {
    settings.javaScriptEnabled = true
    settings.allowFileAccess = false
    settings.allowContentAccess = false
    webViewClient = object : WebViewClient() {
        override fun shouldOverrideUrlLoading(view: WebView, request: WebResourceRequest): Boolean =
            webAddress(request.url.toString()) == null
    }
    loadUrl(address.toString())
}

private fun isOnWifi(context: Context): Boolean {
    val networks = context.getSystemService(ConnectivityManager::class.java)
    val active = networks.activeNetwork?.let(networks::getNetworkCapabilities) ?: return false
    return active.hasTransport(NetworkCapabilities.TRANSPORT_WIFI) || active.hasTransport(NetworkCapabilities.TRANSPORT_ETHERNET)
}

/** Fetches a picture, and gives it to an activity that still lives, on the main thread. Without it the page has none. */
private fun Activity.loadPicture(address: Uri, loaded: (Bitmap) -> Unit) {
    val main = Handler(Looper.getMainLooper())
    thread(name = "carillon-picture", isDaemon = true) {
        try {
            val picture = decodePicture(fetchPicture(address.toString())) ?: throw IOException("it is no picture")
            main.post { if (!isDestroyed) loaded(picture) }
        } catch (error: IOException) {
            Log.w(TAG, "a picture could not be fetched: ${error.message}")
        }
    }
}

/** IOException: the picture has more than 500 KB, does not come in time, or at all. */
internal fun fetchPicture(address: String): ByteArray {
    val connection = URL(address).openConnection() as HttpURLConnection
    val endMs = SystemClock.elapsedRealtime() + PICTURE_MS
    connection.connectTimeout = CONNECT_MS
    connection.readTimeout = CONNECT_MS
    try {
        if (connection.responseCode != HttpURLConnection.HTTP_OK) throw IOException("the answer is ${connection.responseCode}")
        val read = ByteArrayOutputStream()
        val part = ByteArray(8192)
        connection.inputStream.use { input ->
            while (true) {
                val count = input.read(part)
                if (count < 0) return read.toByteArray()
                read.write(part, 0, count)
                if (read.size() > MAX_PICTURE_BYTES) throw IOException("it has more than 500 KB")
                if (SystemClock.elapsedRealtime() > endMs) throw IOException("it takes too long")
            }
        }
    } finally {
        connection.disconnect()
    }
}

/** Decodes a picture, smaller where it has more pixels than a screen: a small file may hold a huge one. */
internal fun decodePicture(bytes: ByteArray): Bitmap? {
    val options = BitmapFactory.Options().apply { inJustDecodeBounds = true }
    BitmapFactory.decodeByteArray(bytes, 0, bytes.size, options)
    options.inSampleSize = 1
    while (maxOf(options.outWidth, options.outHeight) / options.inSampleSize > MAX_PICTURE_PIXELS) options.inSampleSize *= 2
    options.inJustDecodeBounds = false
    return BitmapFactory.decodeByteArray(bytes, 0, bytes.size, options)
}
