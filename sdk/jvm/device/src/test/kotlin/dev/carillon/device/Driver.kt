package dev.carillon.device

import java.io.File
import java.security.KeyStore
import java.security.cert.CertificateFactory
import java.util.concurrent.CountDownLatch
import java.util.logging.Level
import java.util.logging.Logger
import javax.net.ssl.SSLContext
import javax.net.ssl.SSLSocketFactory
import javax.net.ssl.TrustManagerFactory
import javax.net.ssl.X509TrustManager

/**
 * Runs one device for the conformance tests: reads a command a line, and prints an event a line, both as JSON.
 *
 * The app fails on the content "fail", never ends on "hang", and waits 5 s on "slow".
 */
public class Driver(private val connector: (authorities: String?) -> Connector) {
    private val timers = ManualTimers()
    private lateinit var device: CarillonDevice
    private var ended: DeviceEvent.Ended? = null
    private var waitsForEnd = false

    public fun run() {
        for (line in generateSequence(::readLine)) {
            val command = decodeFrame(line)!!
            when (command["do"]) {
                "start" -> start(command)
                "elapse" -> timers.elapse(command.ms())
                "move" -> {
                    timers.move(command.ms())
                    emit("moved" to true)
                }
                "call" -> call(command["method"] as String, command["arguments"] as List<*>)
                "close" -> {
                    val stopped = CountDownLatch(1)
                    device.stop(stopped::countDown)
                    stopped.await()
                    return emit("closed" to true)
                }
            }
        }
    }

    private fun start(command: Map<String, Any?>) {
        val attributes = (command["attributes"] as Map<*, *>?).orEmpty().entries.associate { "${it.key}" to "${it.value}" }
        val chance = (command["chance"] as Double?) ?: 0.5
        val heartbeatS = (command["heartbeat"] as Long?)?.toInt()
        device = CarillonDevice(
            DeviceConfig(command["url"] as String, "1000000001", attributes, heartbeatS),
            FileStorage(File(command["state"] as String)),
            App(),
            connector = connector(command["ca"] as String?),
            timers = timers,
            random = { chance },
        )
        device.start()
        device.whenConnected { _, error -> emit("connect" to outcome(error)) }
    }

    private inner class App : DeviceListener {
        override fun onPush(push: Push, done: Done) {
            emit("push" to decodeFrame(push.toJson()))
            when (push.content) {
                "fail" -> throw IllegalStateException("the app's own error")
                "hang" -> {}
                "slow" -> timers.schedule(5000, done::handled)
                else -> done.handled()
            }
        }

        override fun onEvent(event: DeviceEvent) {
            emit("event" to frame(event))
            if (event is DeviceEvent.Ended) synchronized(this@Driver) {
                ended = event
                if (waitsForEnd) emit("raised" to listOf("ended", null))
            }
        }
    }

    private fun frame(event: DeviceEvent): Map<String, Any?> = when (event) {
        is DeviceEvent.Welcome -> event.frame
        is DeviceEvent.Goodbye -> event.frame
        is DeviceEvent.Error -> event.frame
        is DeviceEvent.Disconnected ->
            mapOf("type" to "disconnected", "reason" to event.reason, "retry_ms" to event.retryMs)
        is DeviceEvent.Ended -> mapOf("type" to "ended", "reason" to event.reason)
    }

    private fun call(method: String, arguments: List<*>) {
        val options = (arguments.lastOrNull() as? Map<*, *>)?.takeIf { "proof" in it || "keys" in it }
        val proofs = (options?.get("proof") as? List<*>)?.map { it as String }?.let(::ArrayDeque)
        val source = proofs?.let { left -> ProofSource { it.onAnswer(left.removeFirst(), null) } }
        val proof = options?.get("proof") as? String
        val answer = Answer<Unit> { _, error -> answered(null, error) }
        fun text(index: Int) = arguments[index] as String
        fun texts() = (arguments[0] as List<*>).map { it as String }
        fun numbers() = (arguments[0] as List<*>).map { (it as Long).toInt() }
        fun map(value: Any?) = (value as Map<*, *>?)?.entries?.associate { "${it.key}" to "${it.value}" }
        when (method) {
            "set_alias" -> if (source != null) device.setAlias(text(0), source, answer) else device.setAlias(text(0), proof, answer)
            "clear_alias" -> device.clearAlias(answer)
            "add_tags" -> if (source != null) device.addTags(numbers(), source, answer) else device.addTags(numbers(), proof, answer)
            "remove_tags" -> device.removeTags(numbers(), answer)
            "add_stags" -> if (source != null) device.addStags(texts(), source, answer) else device.addStags(texts(), proof, answer)
            "remove_stags" -> device.removeStags(texts(), answer)
            "set_attributes" -> device.setAttributes(map(arguments[0])!!, answer)
            "set_address" -> device.setAddress(text(0), text(1), map(options?.get("keys")), answer)
            "clear_address" -> device.clearAddress(text(0), answer)
            "get_device" -> device.getDevice { known, error -> answered(known?.let(::fields), error) }
            "report" -> device.report(text(0), arguments[1] as Long).also { answered(null, null) }
            "activity" -> device.activity(text(0)).also { answered(null, null) }
            "ended" -> synchronized(this) {
                waitsForEnd = true
                if (ended != null) emit("raised" to listOf("ended", null))
            }
            else -> throw IllegalArgumentException(method)
        }
    }

    private fun fields(known: KnownDevice): Map<String, Any?> = mapOf(
        "alias" to known.alias, "tags" to known.tags, "stags" to known.stags, "device" to known.attributes,
        "channels" to known.channels,
    )

    private fun answered(value: Any?, error: Exception?) {
        if (error == null) emit("returned" to value) else emit("raised" to listOf(kind(error), (error as? RefusedException)?.code))
    }

    private fun outcome(error: Exception?): String = when {
        error == null -> "welcomed"
        error is EndedException && error.reason == "storage" -> "storage"
        else -> kind(error)
    }

    private fun kind(error: Exception): String = when (error) {
        is EndedException -> "ended"
        is RefusedException -> "refused"
        is DeadlineException -> "deadline"
        else -> "unavailable"
    }

    private fun emit(line: Pair<String, Any?>) = synchronized(System.out) {
        println(writeJson(mapOf(line)))
        System.out.flush()
    }

    private fun Map<String, Any?>.ms(): Long = Math.round((this["ms"] as Number).toDouble())
}

/** Returns sockets that trust the authorities in a PEM file alone, and what verifies for them. */
public fun trusted(file: String): Pair<SSLSocketFactory, X509TrustManager> {
    val store = KeyStore.getInstance(KeyStore.getDefaultType()).apply { load(null, null) }
    val found = File(file).inputStream().use { CertificateFactory.getInstance("X.509").generateCertificates(it) }
    found.forEachIndexed { index, certificate -> store.setCertificateEntry("$index", certificate) }
    val trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()).apply { init(store) }
    val sockets = SSLContext.getInstance("TLS").apply { init(null, trusted.trustManagers, null) }.socketFactory
    return sockets to trusted.trustManagers.single() as X509TrustManager
}

internal fun main() {
    Logger.getLogger("dev.carillon.device").level = Level.OFF
    Driver { authorities -> WebSocketConnector(authorities?.let { trusted(it).first }) }.run()
}
