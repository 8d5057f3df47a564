package dev.carillon.android

import android.app.Activity
import android.app.PendingIntent
import android.content.BroadcastReceiver
import android.content.ComponentName
import android.content.Context
import android.content.Intent
import android.content.pm.ActivityInfo
import android.content.pm.PackageManager
import android.net.Uri
import android.os.Bundle
import dev.carillon.device.Push
import java.net.URISyntaxException
import org.json.JSONException
import org.json.JSONObject

private const val OPEN_APP = 1
internal const val OPEN_URL = 2
private const val OPEN_INTENT = 3
internal const val LANDING_PAGE = 4
internal const val POP_UP = 5
internal const val INFORMATION_FLOW = 6
internal const val RICH_MEDIA = 7
private const val DOWNLOAD = 8

/** Longer addresses and intents are not opened. */
private const val MAX_LINK = 8192

/** An intent with its extras must stay well below the megabyte that all of a process share. */
private const val MAX_EXTRA = 100_000

private const val MAX_CONTENT = 5_000

/**
 * Returns the intent that a click on the push's notification starts; null: the click opens nothing. What is not allowed
 * or not understood opens the app.
 */
internal fun clickIntent(context: Context, push: Push): Intent? = when (push.clickAction) {
    null, 0 -> null
    OPEN_APP -> launchIntent(context)
    OPEN_URL, DOWNLOAD -> webPage(push.clickParam) ?: launchIntent(context)
    OPEN_INTENT -> ownActivity(context, push.clickParam) ?: launchIntent(context)
    else -> if (Page.of(push) == null) launchIntent(context) else PageActivity.intent(context, push)
}

/** Returns the intent by which a launcher opens the app: one that is open comes to the front as it is. */
internal fun launchIntent(context: Context): Intent? =
    context.packageManager.getLaunchIntentForPackage(context.packageName)
        ?.setPackage(null)
        ?.addFlags(Intent.FLAG_ACTIVITY_NEW_TASK or Intent.FLAG_ACTIVITY_RESET_TASK_IF_NEEDED)

/** Returns the address of a web page; null for anything else, such as `file:`, `tel:` or `intent:`. */
internal fun webAddress(value: Any?): Uri? {
    if (value !is String || value.length > MAX_LINK) return null
    val uri = Uri.parse(value.trim()).normalizeScheme()
    return uri.takeIf { (it.scheme == "http" || it.scheme == "https") && !it.host.isNullOrEmpty() }
}

internal fun webPage(value: Any?): Intent? = webAddress(value)?.let {
    Intent(Intent.ACTION_VIEW, it).addCategory(Intent.CATEGORY_BROWSABLE).addFlags(Intent.FLAG_ACTIVITY_NEW_TASK)
}

/**
 * Returns the intent of an intent URI, or of another URI that an activity of the app views. It starts an exported
 * activity of the app alone, by its name, and has no selector, clip data or flag of the text: so it opens nothing that
 * another app could not open, and hands out no right to files.
 */
internal fun ownActivity(context: Context, value: Any?): Intent? {
    if (value !is String || value.length > MAX_LINK) return null
    val asked = intentOf(value) ?: return null
    if (asked.`package` != null && asked.`package` != context.packageName) return null
    val intent = Intent(asked.action).setDataAndType(asked.data, asked.type).setPackage(context.packageName)
    asked.categories?.forEach(intent::addCategory)
    asked.extras?.let(intent::putExtras)
    val found = activity(context, asked.component, intent) ?: return null
    if (!found.exported || found.packageName != context.packageName) return null
    return intent.setComponent(ComponentName(found.packageName, found.name)).addFlags(Intent.FLAG_ACTIVITY_NEW_TASK)
}

/**
 * Returns the intent of a text. Android's parser looks for ever for the end of some that have none, so it gets only those
 * that end as they must.
 */
private fun intentOf(text: String): Intent? {
    val fields = text.lastIndexOf('#')
    if (fields < 0 || !text.startsWith("#Intent;", fields)) return Intent(Intent.ACTION_VIEW, Uri.parse(text))
    if (!text.endsWith(";end")) return null
    return try {
        Intent.parseUri(text, if (text.startsWith("intent:")) Intent.URI_INTENT_SCHEME else 0)
    } catch (_: URISyntaxException) {
        null
    } catch (_: RuntimeException) { // some texts, such as numbers that are none, have other exceptions
        null
    }
}

@Suppress("DEPRECATION") // the functions that replace them came with Android 13
private fun activity(context: Context, named: ComponentName?, intent: Intent): ActivityInfo? {
    val packages = context.packageManager
    return try {
        if (named != null) packages.getActivityInfo(named, 0)
        else packages.resolveActivity(intent, PackageManager.MATCH_DEFAULT_ONLY)?.activityInfo
    } catch (_: PackageManager.NameNotFoundException) {
        null
    }
}

/** Returns the push as an extra of an intent. A long one is cut: what a click needs is short. */
internal fun extraOf(push: Push): String {
    val json = push.toJson()
    if (json.length <= MAX_EXTRA) return json
    return try {
        val short = JSONObject(json).put("content", push.content.take(MAX_CONTENT))
        for (field in listOf("extra", "click", "title")) if (short.toString().length > MAX_EXTRA) short.remove(field)
        short.toString()
    } catch (_: JSONException) {
        "{}"
    }
}

/** The address that makes the pending intents of one push differ from those of another. */
private fun addressOf(msgid: Long): Uri = Uri.fromParts("carillon", msgid.toString(), null)

private const val FLAGS = PendingIntent.FLAG_IMMUTABLE or PendingIntent.FLAG_UPDATE_CURRENT

/** Carries out a click on a notification, and shows nothing itself. Only the SDK's own notifications start it. */
public class ClickActivity : Activity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        intent.textExtra(PUSH)?.let { Push.fromJson(it) }?.let { Carillon.clicked(this, it) }
        finish()
    }

    internal companion object {
        fun pending(context: Context, push: Push): PendingIntent {
            val intent = Intent(context, ClickActivity::class.java).setData(addressOf(push.msgid))
                .putExtra(PUSH, extraOf(push)).addFlags(Intent.FLAG_ACTIVITY_NEW_TASK)
            return PendingIntent.getActivity(context, 0, intent, FLAGS)
        }
    }
}

/** Hears that a notification was dismissed, and what other processes of the app hand over to the main one. */
public class PushReceiver : BroadcastReceiver() {
    override fun onReceive(context: Context, intent: Intent) {
        when (intent.action) {
            REPORT -> {
                val msgid = intent.data?.schemeSpecificPart?.toLongOrNull() ?: return
                Carillon.report(context, intent.getStringExtra(EVENT) ?: return, msgid)
            }
            MESSAGE -> {
                val push = intent.getStringExtra(PUSH) ?: return
                Carillon.onMessage(mapOf(PUSH to push), intent.getStringExtra(TITLE), intent.getStringExtra(CONTENT))
            }
        }
    }

    internal companion object {
        private const val REPORT = "dev.carillon.android.REPORT"
        private const val MESSAGE = "dev.carillon.android.MESSAGE"
        private const val EVENT = "event"
        private const val TITLE = "title"
        private const val CONTENT = "content"

        fun dismissed(context: Context, msgid: Long): PendingIntent =
            PendingIntent.getBroadcast(context, 0, report(context, "dismissed", msgid), FLAGS)

        fun report(context: Context, event: String, msgid: Long): Intent =
            Intent(context, PushReceiver::class.java).setAction(REPORT).setData(addressOf(msgid)).putExtra(EVENT, event)

        fun message(context: Context, message: VendorMessage): Intent =
            Intent(context, PushReceiver::class.java).setAction(MESSAGE)
                .putExtra(PUSH, message.push).putExtra(TITLE, message.title).putExtra(CONTENT, message.content)
    }
}
