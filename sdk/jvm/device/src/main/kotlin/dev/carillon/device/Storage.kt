package dev.carillon.device

import java.io.File
import java.io.FileOutputStream
import java.io.IOException

/** Handled message ids that a device stores, so that it shows no push twice. */
internal const val MAX_MSGIDS = 1000

/** Reports that a device stores until the service confirms them; beyond that, the oldest is given up. */
internal const val MAX_REPORTS = 200

/** Acknowledgements of pushes that came over a vendor's service, which wait for a connection. */
internal const val MAX_ACKS = 200

/** Form of the state, which a state without a `version` has; a later form, which this SDK cannot read, has a greater one. */
private const val VERSION = 1L

/**
 * Stores the state of one device, a text. It holds the device's key: keep it where only the app can read it, and out of
 * backups, since two phones with one identity replace each other for ever.
 *
 * Calls come from the device's own thread, one at a time, and may block. They may throw any exception.
 */
public interface Storage {
    /** Returns the text that was saved last; null if none was. */
    public fun load(): String?

    /** Returns once the text survives a power cut, for pushes are acknowledged after that. */
    public fun save(text: String)
}

/** Keeps the state in memory; it is lost at the end of the process. */
public class MemoryStorage @JvmOverloads constructor(@Volatile private var text: String? = null) : Storage {
    override fun load(): String? = text

    override fun save(text: String) {
        this.text = text
    }
}

/**
 * Stores the state in a file that only its owner may read, and that is replaced atomically. Only one device may use it.
 * On Android choose a file in `noBackupFilesDir`.
 */
public class FileStorage(private val file: File) : Storage {
    override fun load(): String? = if (file.exists()) file.readText() else null

    override fun save(text: String) {
        val new = File("${file.path}.new")
        new.delete()
        if (!new.createNewFile()) throw IOException("$new exists")
        // The owner alone, before anything is in it.
        new.setReadable(false, false)
        new.setReadable(true, true)
        new.setWritable(false, false)
        new.setWritable(true, true)
        FileOutputStream(new).use {
            it.write(text.toByteArray())
            it.fd.sync()
        }
        if (!new.renameTo(file)) throw IOException("$new could not be renamed to $file")
    }

    override fun toString(): String = file.path
}

/** What a device knows across restarts; `save` writes it to the storage. Used by the device's thread alone. */
internal class DeviceState(private val storage: Storage) {
    var token: String? = null
    var key: String? = null

    /** Reports without confirmation, by their ids, oldest first. */
    val reports = LinkedHashMap<Long, Map<String, Any?>>()

    /** Ids of pushes from a vendor's service that no connection has acknowledged. */
    val acks = LinkedHashSet<Long>()
    private val msgids = LinkedHashSet<Long>()

    /** Exception: the storage failed, or holds what no device has saved. */
    fun load() {
        val text = storage.load() ?: return
        val saved = try {
            parseJson(text) as? Map<*, *>
        } catch (_: JsonException) {
            null
        }
        if (saved != null && "version" in saved && saved["version"] != VERSION) {
            throw IOException("$storage was saved by a later version of the SDK")
        }
        if (saved == null || !take(saved)) throw IOException("$storage does not hold what a device has saved")
    }

    /** Exception: the storage failed. */
    fun save() {
        val saved = linkedMapOf<String, Any?>("token" to token, "key" to key, "msgids" to msgids)
        if (reports.isNotEmpty()) saved["reports"] = reports.values
        if (acks.isNotEmpty()) saved["acks"] = acks
        storage.save(writeJson(saved))
    }

    fun has(msgid: Long): Boolean = msgid in msgids

    fun add(msgid: Long) {
        msgids.add(msgid)
        msgids.dropOldest(MAX_MSGIDS)
    }

    fun addAck(msgid: Long) {
        acks.add(msgid)
        acks.dropOldest(MAX_ACKS)
    }

    fun addReport(id: Long, report: Map<String, Any?>) {
        reports[id] = report
        reports.keys.dropOldest(MAX_REPORTS)
    }

    private fun take(saved: Map<*, *>): Boolean {
        val token = saved["token"]
        val key = saved["key"]
        val ids = longs(saved["msgids"] ?: return false) ?: return false
        val unsent = longs(saved["acks"] ?: emptyList<Any>()) ?: return false
        val kept = saved["reports"] ?: emptyList<Any>()
        val isWhole = token is String && key is String || token == null && key == null
        if (!isWhole || kept !is List<*>) return false
        for (report in kept) {
            val id = (report as? Map<*, *>)?.get("id") as? Long ?: return false
            reports[id] = report.entries.associate { (name, value) -> name.toString() to value }
        }
        this.token = token as String?
        this.key = key as String?
        msgids.addAll(ids)
        acks.addAll(unsent)
        return true
    }

    private fun longs(value: Any): List<Long>? {
        val found = (value as? List<*>)?.filterIsInstance<Long>()
        return found?.takeIf { it.size == (value as List<*>).size }
    }
}

private fun <T> MutableSet<T>.dropOldest(most: Int) {
    while (size > most) iterator().run {
        next()
        remove()
    }
}
