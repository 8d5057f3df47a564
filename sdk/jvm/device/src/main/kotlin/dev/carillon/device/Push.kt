package dev.carillon.device

/** Message and request ids are below 2^53. */
private const val MAX_ID = (1L shl 53) - 1

/** The name of the field in which a vendor's service brings a push. */
private const val VENDOR_FIELD = "carillon"

/** A push. The optional fields are null where the sender left them out. */
public class Push private constructor(private val frame: Map<String, Any?>) {
    /** The message id, which `CarillonDevice.report` needs. */
    public val msgid: Long = frame["msgid"] as Long

    /** Whether a notification is shown; else the push is for the app only. */
    public val isNotification: Boolean get() = frame["is_notif"] == 1L
    public val content: String get() = frame["content"] as? String ?: ""
    public val title: String? get() = frame["title"] as? String

    /** When the push expires, in milliseconds since 1970 UTC. */
    public val expiresAtMs: Long get() = frame["expires_at"] as? Long ?: 0
    public val sound: Boolean? get() = frame["sound"] as? Boolean
    public val vibrate: Boolean? get() = frame["vibrate"] as? Boolean

    /** Whether the user can remove the notification. */
    public val removable: Boolean? get() = frame["removable"] as? Boolean

    /** The effect of a click, 1 to 8 as docs/devices.md lists them. */
    public val clickAction: Int? get() = (click?.get("action") as? Long)?.toInt()

    /** What the click needs, such as a URL: a String, or a Map of values of JSON for the actions 4 to 7. */
    public val clickParam: Any? get() = click?.get("param")

    /** The number shown at the app's icon; -1 adds one. */
    public val badge: Int? get() = (frame["badge"] as? Long)?.toInt()

    /** Free text from the app server. */
    public val extra: String? get() = frame["extra"] as? String

    /** Over a vendor's service, whose messages are short: the fields that were cut or left out. */
    public val shortened: List<String> get() = (frame["shortened"] as? List<*>).orEmpty().filterIsInstance<String>()

    private val click: Map<*, *>? get() = frame["click"] as? Map<*, *>

    /** The whole push as JSON, which `fromJson` reads: for the extras of an intent, or for a store of the app's own. */
    public fun toJson(): String = writeJson(frame)

    override fun toString(): String = "Push $msgid"

    public companion object {
        /** Returns the push that `toJson` has written; null for any other text. */
        @JvmStatic
        public fun fromJson(json: String): Push? = decodeFrame(json)?.let(::of)

        /** Returns the push of a frame; null for a frame that is none. */
        internal fun of(frame: Map<String, Any?>): Push? {
            val msgid = frame["msgid"]
            return if (frame["type"] == "push" && msgid is Long && msgid in 1..MAX_ID) Push(frame) else null
        }

        /**
         * Returns the push in the data that a vendor's service brought; null if it is not from Carillon. What the phone
         * could show by itself, title and content, is not in the data, and is taken from the notification.
         */
        internal fun ofVendor(data: Map<String, String>, title: String?, content: String?): Push? {
            val frame = decodeFrame(data[VENDOR_FIELD] ?: return null) ?: return null
            val shown = LinkedHashMap(frame)
            if (title != null && "title" !in shown) shown["title"] = title
            if (content != null && (shown["content"] as? String).isNullOrEmpty()) shown["content"] = content
            return of(shown)
        }
    }
}

/** Returns the JSON object of a text; null for any other text, which a device ignores. */
internal fun decodeFrame(text: String): Map<String, Any?>? = try {
    @Suppress("UNCHECKED_CAST") // the parser's maps have names of type String
    parseJson(text) as? Map<String, Any?>
} catch (_: JsonException) {
    null
}
