package dev.carillon.sample

import android.app.Activity
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import dev.carillon.android.Carillon

private const val PERMISSION_REQUEST = 1
private const val PADDING = 32

/** The app's page: where to connect, what the service knows of this device, and what has come. */
class MainActivity : Activity() {
    private val app get() = application as SampleApp
    private lateinit var url: EditText
    private lateinit var appkey: EditText
    private lateinit var alias: EditText
    private lateinit var shown: TextView

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        url = EditText(this).apply { hint = "ws://192.168.1.2:8400/device/v1" }
        appkey = EditText(this).apply { hint = "appkey" }
        alias = EditText(this).apply { hint = "alias" }
        shown = TextView(this).apply { setTextIsSelectable(true) }
        setContentView(page())
        fill(app.url, app.appkey, app.alias)
        if (savedInstanceState == null) opened(intent)
    }

    override fun onNewIntent(intent: Intent) {
        super.onNewIntent(intent)
        opened(intent)
    }

    override fun onStart() {
        super.onStart()
        app.onChange = ::show
        Carillon.setBadge(0)
        show()
    }

    override fun onStop() {
        app.onChange = {}
        super.onStop()
    }

    private fun page() = ScrollView(this).apply {
        fitsSystemWindows = true
        addView(LinearLayout(context).apply {
            orientation = LinearLayout.VERTICAL
            setPadding(PADDING, PADDING, PADDING, PADDING)
            val connect = button("Connect") { connect() }
            val setAlias = button("Set alias") { app.setAlias(text(alias)) }
            for (view in listOf(url, appkey, connect, alias, setAlias, shown)) addView(view)
        })
    }

    private fun button(label: String, clicked: () -> Unit) = Button(this).apply {
        text = label
        setOnClickListener { clicked() }
    }

    /** A notification that the phone has shown by itself, or a link carillon://connect?url=…&appkey=…&alias=…. */
    private fun opened(intent: Intent) {
        if (Carillon.onIntent(this, intent)) return
        val link = intent.data?.takeIf { it.scheme == "carillon" && it.isHierarchical } ?: return
        fill(link.parameter("url"), link.parameter("appkey"), link.parameter("alias"))
        // Any web page may have the link, so it moves no connection: the user does, by the button.
        if (app.url.isEmpty()) connect()
    }

    private fun Uri.parameter(name: String) = getQueryParameter(name).orEmpty()

    private fun fill(url: String, appkey: String, alias: String) {
        this.url.setText(url)
        this.appkey.setText(appkey)
        this.alias.setText(alias)
    }

    private fun connect() {
        try {
            app.connect(text(url), text(appkey), text(alias))
        } catch (error: IllegalArgumentException) {
            url.error = error.message
            return
        }
        Carillon.requestPermission(this, PERMISSION_REQUEST)
    }

    private fun text(field: EditText) = field.text.toString().trim()

    private fun show() {
        val known = app.known
        val lines = listOf(
            "State: ${app.state}",
            "Token: ${Carillon.device?.token.orEmpty()}",
            "Alias: ${known?.alias.orEmpty()}",
            "Tags: ${(known?.tags.orEmpty() + known?.stags.orEmpty()).joinToString()}",
            "",
        )
        shown.text = (lines + app.messages).joinToString("\n")
    }
}
