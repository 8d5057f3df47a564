package dev.carillon.android.ktx

import dev.carillon.device.CarillonDevice
import dev.carillon.device.Connection
import dev.carillon.device.Connector
import dev.carillon.device.DeviceConfig
import dev.carillon.device.DeviceEvent
import dev.carillon.device.DeviceListener
import dev.carillon.device.Done
import dev.carillon.device.MemoryStorage
import dev.carillon.device.Push
import dev.carillon.device.RefusedException
import dev.carillon.device.UnavailableException
import java.util.concurrent.LinkedBlockingQueue
import java.util.concurrent.TimeUnit
import java.util.logging.Level
import java.util.logging.Logger
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.json.JSONObject
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

private const val BOUND_MS = 60_000L

/** The device's requests and the handler in coroutines, at a gateway of the test. */
class KtxTest {
    private val gateway = Gateway()
    private val handler = Handler()
    private val device = CarillonDevice(
        DeviceConfig("wss://push.example.org/device/v1", "1000000001"), MemoryStorage(), Listener(handler), gateway,
    )

    init {
        Logger.getLogger("dev.carillon.device").level = Level.OFF
    }

    @After
    fun stop() = device.stop()

    private fun <T> run(test: suspend CoroutineScope.() -> T): T = runBlocking { withTimeout(BOUND_MS, test) }

    @Test
    fun `a request returns its answer or throws its error`() = run {
        assertThrows(UnavailableException::class.java) { runBlocking { device.suspending.clearAlias() } }
        device.start()
        val connected = async(Dispatchers.Default) { device.suspending.connected() }
        gateway.welcome()
        connected.await()
        gateway.answers = { """{"type": "ok", "alias": "alice", "tags": [7], "stags": [], "device": {}}""" }
        device.suspending.addTags(listOf(7))
        assertEquals("alice", device.suspending.getDevice().alias)
        gateway.answers = { """{"type": "error", "code": 400, "desc": "wrong"}""" }
        val refused = assertThrows(RefusedException::class.java) { runBlocking { device.suspending.addStags(listOf("a")) } }
        assertEquals(400, refused.code)
    }

    @Test
    fun `a proof is fetched by a suspending function, and not after a cancellation`() = run {
        device.start()
        gateway.welcome()
        device.suspending.connected()
        gateway.answers = { """{"type": "ok"}""" }
        device.suspending.setAlias("alice") { "the proof" }
        assertEquals("the proof", gateway.requested().getString("proof"))
        val failed = assertThrows(IllegalStateException::class.java) {
            runBlocking { device.suspending.setAlias("alice") { error("no server") } }
        }
        assertEquals("no server", failed.message)
        val waiting = async(start = CoroutineStart.UNDISPATCHED) { device.suspending.setAlias("alice") { awaitCancellation() } }
        waiting.cancelAndJoin()
        device.suspending.clearAlias()
        assertEquals("clear_alias", gateway.requested().getString("type"))
    }

    @Test
    fun `a push is handled when the function returns, and comes again when it throws`() = run {
        val (good, bad) = listOf(Ending(), Ending())
        handler.onMessage(push(1, "one"), good)
        handler.onMessage(push(2, "fail"), bad)
        assertEquals("handled", good.ended())
        assertEquals("failed: not now", bad.ended())
        assertEquals(listOf("one", "fail"), handler.handled.toList())
    }

    @Test
    fun `events go to every collector, and clicks wait for one`() = run {
        assertFalse(handler.onClick(push(5, "clicked")))
        assertFalse(handler.isConnected.value)
        val collectors = List(2) { async(start = CoroutineStart.UNDISPATCHED) { handler.events.take(2).toList() } }
        device.start()
        gateway.welcome()
        handler.isConnected.first { it }
        gateway.opened.receive("""{"type": "error", "code": 400, "desc": "of a report"}""")
        for (collector in collectors) assertEquals(listOf("welcome, heartbeat 900 s", "error 400: of a report"), collector.await().map { "$it" })
        assertTrue(handler.isConnected.value)
        gateway.opened.lose()
        handler.isConnected.first { !it }
        assertEquals(5, handler.clicks.first().msgid)
    }
}

private fun push(msgid: Long, content: String): Push =
    Push.fromJson("""{"type": "push", "msgid": $msgid, "is_notif": 0, "content": "$content", "expires_at": 9}""")!!

private class Handler : CoroutineHandler(CoroutineScope(Dispatchers.Unconfined)) {
    val handled = LinkedBlockingQueue<String>()

    override suspend fun handle(push: Push) {
        handled.add(push.content)
        if (push.content == "fail") throw IllegalStateException("not now")
    }
}

private class Ending : Done {
    private val ends = LinkedBlockingQueue<String>()

    override fun handled() {
        ends.add("handled")
    }

    override fun failed(error: Throwable) {
        ends.add("failed: ${error.message}")
    }

    fun ended(): String? = ends.poll(BOUND_MS, TimeUnit.MILLISECONDS)
}

private class Listener(private val handler: Handler) : DeviceListener {
    override fun onPush(push: Push, done: Done) = handler.onMessage(push, done)

    override fun onEvent(event: DeviceEvent) = handler.onEvent(event)
}

/** A gateway that answers requests with `answers` and their ids. */
private class Gateway : Connector {
    private val requests = LinkedBlockingQueue<JSONObject>()
    private val connections = LinkedBlockingQueue<Opened>()
    lateinit var opened: Opened

    @Volatile
    var answers: () -> String = { "{}" }

    override fun open(url: String, subprotocol: String, receiver: Connector.Receiver): Connection = Opened(receiver).also {
        connections.add(it)
        receiver.onOpen()
    }

    fun welcome() {
        opened = connections.poll(BOUND_MS, TimeUnit.MILLISECONDS)!!
        opened.receive("""{"type": "welcome", "token": "t", "key": "k", "heartbeat": 900, "new": true}""")
    }

    /** The next request that has come. */
    fun requested(): JSONObject = requests.poll(BOUND_MS, TimeUnit.MILLISECONDS)!!

    inner class Opened(private val receiver: Connector.Receiver) : Connection {
        override fun send(text: String) {
            val request = JSONObject(text)
            if (!request.has("id")) return
            requests.add(request)
            receive(JSONObject(answers()).put("id", request.getLong("id")).toString())
        }

        override fun close() = receiver.onClosed("closed")

        override fun drop() {}

        fun receive(text: String) = receiver.onTexts(listOf(text))

        fun lose() = receiver.onClosed("lost")
    }
}
