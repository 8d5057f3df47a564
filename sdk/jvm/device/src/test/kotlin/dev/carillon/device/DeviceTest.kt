package dev.carillon.device

import java.io.File
import java.nio.file.Files
import java.util.concurrent.CountDownLatch
import java.util.concurrent.LinkedBlockingQueue
import java.util.concurrent.TimeUnit
import java.util.logging.Level
import java.util.logging.Logger
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Test

private const val BOUND_S = 60L

/** Devices on connections of a test, with a clock that the test moves; `random` is always 0.5. */
class DeviceTest {
    private val storage = Recorded()
    private val gateway = Gateway()
    private val timers = ManualTimers()
    private val app = App()
    private val started = ArrayList<CarillonDevice>()

    @Before
    fun silence() {
        Logger.getLogger("dev.carillon.device").level = Level.OFF
    }

    @After
    fun stop() = started.forEach { it.stop() }

    @Test
    fun `before the start nothing is read, stored or connected, and no thread runs`() {
        val threads = threads()
        val device = device()
        device.report("clicked", 5)
        device.activity("open")
        device.checkConnection()
        assertTrue(device.onMessage(vendors(7)))
        val answers = Answers<Unit>()
        device.setAlias("alice", answer = answers)
        assertTrue(answers.next().exceptionOrNull() is UnavailableException)
        assertNull(device.token)
        assertEquals(emptySet<Thread>(), threads() - threads)
        assertEquals(0, storage.calls + gateway.opened.size + app.seen.size)
        device.start()
        val connection = gateway.welcome()
        assertEquals(listOf("report", "activity"), listOf(connection.sent()["type"], connection.sent()["type"]))
        assertEquals("push 7", app.next())
    }

    @Test
    fun `a device that is stopped before its start never starts`() {
        val device = device()
        val answers = Answers<Unit>()
        device.whenConnected(answers)
        device.report("clicked", 5)
        device.stopAndWait()
        device.start()
        assertTrue(answers.next().exceptionOrNull() is UnavailableException)
        device.whenConnected(answers)
        assertTrue(answers.next().exceptionOrNull() is UnavailableException)
        assertEquals(0, storage.calls + gateway.opened.size)
    }

    @Test
    fun `reports survive the end of the process until they are confirmed`() {
        val device = device()
        device.start()
        val first = gateway.welcome()
        device.report("clicked", 5)
        device.report("shown", 6)
        val (clicked, shown) = listOf(first.sent(), first.sent())
        first.receive("""{"type": "ok", "id": ${clicked["id"]}}""")
        first.lose()
        storage.awaitSaved { "clicked" !in it && "shown" in it }
        device.report("dismissed", 7)
        storage.awaitSaved { "dismissed" in it } // a killed process saves nothing more
        val again = device()
        again.start()
        val second = gateway.welcome()
        assertEquals(shown, second.sent())
        val last = second.sent()
        assertEquals(listOf("dismissed", 7L), listOf(last["event"], last["msgid"]))
        again.report("clicked", 8)
        assertTrue("a new id", second.sent()["id"] as Long > last["id"] as Long)
    }

    @Test
    fun `of reports without a confirmation the newest 200 are kept`() {
        val device = device()
        device.start()
        val first = gateway.welcome()
        for (msgid in 1L..250) device.report("shown", msgid)
        repeat(250) { first.sent() }
        first.lose()
        timers.elapse(100)
        assertEquals((51L..250).toList(), gateway.welcome().run { List(200) { sent()["msgid"] } })
    }

    @Test
    fun `a push comes once, over a connection or from a vendor, and is acknowledged on either way`() {
        val device = device()
        device.start()
        val connection = gateway.welcome()
        connection.receive(push(1))
        assertEquals("push 1", app.next())
        assertEquals(listOf(1L), connection.sent()["msgids"])
        assertTrue(device.onMessage(vendors(1)))
        assertEquals(listOf(1L), connection.sent()["msgids"])
        assertTrue(device.onMessage(vendors(2)))
        assertEquals("push 2", app.next())
        assertEquals(listOf(2L), connection.sent()["msgids"])
        connection.receive(push(2), push(3))
        assertEquals("push 3", app.next())
        assertEquals(listOf(2L), connection.sent()["msgids"])
        assertEquals(listOf(3L), connection.sent()["msgids"])
    }

    @Test
    fun `a vendor's push without a connection is acknowledged by a later process`() {
        val device = device()
        device.start()
        gateway.opened.take()
        assertTrue(device.onMessage(vendors(9)))
        assertEquals("push 9", app.next())
        storage.awaitSaved { "\"acks\":[9]" in it }
        val again = device()
        again.start()
        val connection = gateway.welcome()
        assertEquals(mapOf("type" to "ack", "msgids" to listOf(9L)), connection.sent())
        storage.awaitSaved { "acks" !in it }
        assertTrue(again.onMessage(vendors(9)))
        assertEquals("it was handled before", listOf(9L), connection.sent()["msgids"])
        assertEquals(emptyList<String>(), app.seen.filter { it.startsWith("push") })
    }

    @Test
    fun `a vendor's notification has its title and content beside the data, other senders' messages are refused`() {
        val device = device()
        device.start()
        val data = mapOf("carillon" to """{"type":"push","msgid":4,"is_notif":1,"content":"","expires_at":1,"click":{"action":2,"param":"u"}}""")
        assertTrue(device.onMessage(data, "T", "C"))
        app.next()
        val shown = app.pushes.last()
        assertEquals(listOf("T", "C", true, 2, "u"), shown.run { listOf(title, content, isNotification, clickAction, clickParam) })
        assertEquals(shown.toJson(), Push.fromJson(shown.toJson())?.toJson())
        for (text in listOf("", "{", "[]", """{"type":"push"}""", """{"type":"push","msgid":0}""", """{"type":"push","msgid":1.0}""")) {
            assertFalse(text, device.onMessage(mapOf("carillon" to text)))
        }
        assertFalse(device.onMessage(mapOf("google.message_id" to "1")))
    }

    @Test
    fun `a push that the app fails on, or that cannot be saved, is not acknowledged`() {
        val device = device()
        device.start()
        val connection = gateway.welcome()
        connection.receive(push(1, "fail"))
        assertEquals("push 1", app.next())
        storage.fails = true
        connection.receive(push(2))
        assertEquals("push 2", app.next())
        storage.awaitFailure()
        storage.fails = false
        connection.receive(push(1), push(2), push(3))
        assertEquals(listOf("push 1", "push 3"), listOf(app.next(), app.next()))
        assertEquals(listOf(1L, 2L, 3L), connection.sent()["msgids"])
    }

    @Test
    fun `a listener that says so twice, or late, counts once`() {
        val device = device()
        device.start()
        val connection = gateway.welcome()
        app.keeps = true
        connection.receive(push(1), push(2))
        assertEquals("push 1", app.next())
        val kept = app.kept.take()
        timers.elapse(CALLBACK_MS)
        assertEquals("push 2", app.next())
        kept.handled()
        kept.failed(IllegalStateException())
        app.kept.take().run {
            handled()
            failed(IllegalStateException())
        }
        assertEquals(listOf(2L), connection.sent()["msgids"])
    }

    @Test
    fun `handled pushes do not wait for one that the app handles for long`() {
        val device = device()
        device.start()
        val connection = gateway.welcome()
        app.blocked = CountDownLatch(1)
        connection.receive(push(1), push(2, "block"))
        assertEquals(listOf("push 1", "push 2"), listOf(app.next(), app.next()))
        timers.elapse(1000)
        assertEquals(listOf(1L), connection.sent()["msgids"])
        app.blocked.countDown()
        assertEquals(listOf(2L), connection.sent()["msgids"])
    }

    @Test
    fun `when the network changes, the device pings, or connects without waiting longer`() {
        val device = device()
        device.start()
        val first = gateway.welcome()
        device.checkConnection()
        assertEquals("ping", first.sent()["type"])
        timers.elapse(ANSWER_MS)
        assertEquals("disconnected: no answer within 10 s; again in 100 ms", app.next())
        device.checkConnection()
        val second = gateway.welcome()
        assertEquals("welcome, heartbeat 70 s", app.next())
        second.receive("""{"type": "goodbye", "reason": "draining", "retry_after_ms": 5000}""")
        assertEquals(listOf("goodbye: draining", "disconnected: draining; again in 5000 ms"), listOf(app.next(), app.next()))
        device.checkConnection()
        Answers<Unit>().run {
            device.clearAlias(this)
            next() // the device has done what it does about the network
        }
        assertTrue("the gateway's delay is kept", gateway.opened.isEmpty())
        timers.elapse(5000)
        gateway.welcome()
    }

    @Test
    fun `a state that is damaged or of a later version is kept, and ends the device`() {
        val good = """{"token": "t", "key": "k", "msgids": [1]}"""
        val damaged = listOf(
            "", "{", "[]", "{}", """{"token": "t", "key": null, "msgids": []}""", """{"token": 1, "key": "k", "msgids": []}""",
            """{"token": "t", "key": "k", "msgids": ["1"]}""", """{"token": "t", "key": "k", "msgids": [], "reports": [{}]}""",
        )
        val later = listOf("""{"version": 2}""", """{"version": null, "token": "t", "key": "k", "msgids": []}""")
        for (text in damaged + later) {
            val kept = Recorded(text)
            val device = device(kept)
            val answers = Answers<Unit>()
            device.whenConnected(answers)
            device.start()
            val meaning = if (text in later) "was saved by a later version of the SDK" else "does not hold what a device has saved"
            assertEquals("ended: storage: the storage $meaning", app.next())
            assertEquals(text, "storage", (answers.next().exceptionOrNull() as EndedException).reason)
            assertEquals(text, kept.text)
        }
        assertTrue(gateway.opened.isEmpty())
        val device = device(Recorded(good))
        device.start()
        assertEquals("t", gateway.next().also { it.open() }.sent()["token"])
    }

    @Test
    fun `a file is private, is replaced whole, and may lie beside what a crash has left`() {
        val folder = Files.createTempDirectory("carillon").toFile()
        val file = File(folder, "device.json")
        File(folder, "device.json.new").writeText("left by a crash")
        assertNull(FileStorage(file).load())
        FileStorage(file).save("one")
        FileStorage(file).save("two é😀")
        assertEquals("two é😀", FileStorage(file).load())
        assertEquals(listOf("device.json"), folder.list()!!.toList())
        assertEquals("rw-------", Files.getPosixFilePermissions(file.toPath()).let { java.nio.file.attribute.PosixFilePermissions.toString(it) })
        folder.deleteRecursively()
    }

    @Test
    fun `the end leaves no thread, and answers what waits`() {
        val others = threads()
        val device = device()
        device.start()
        val connection = gateway.welcome()
        val answers = Answers<Unit>()
        device.setAlias("alice", answer = answers)
        assertEquals("set_alias", connection.sent()["type"])
        connection.isClosedBy = { it.lose() }
        device.stopAndWait()
        assertTrue(answers.next().exceptionOrNull() is UnavailableException)
        device.clearAlias(answers)
        assertTrue(answers.next().exceptionOrNull() is UnavailableException)
        for (thread in threads() - others) {
            thread.join(TimeUnit.SECONDS.toMillis(BOUND_S))
            assertFalse(thread.name, thread.isAlive)
        }
        device.stopAndWait()
    }

    @Test
    fun `a gateway that does not close, and an app that hangs, do not keep a device from its end`() {
        val device = device()
        device.start()
        val connection = gateway.welcome()
        app.keeps = true
        connection.receive(push(1))
        assertEquals("push 1", app.next())
        repeat(3) { timers.elapse(CLOSE_MS) } // the app, the closing handshake, and the app again
        device.stopAndWait()
        assertTrue(connection.isDropped)
    }

    @Test
    fun `nothing that may be logged holds the key`() {
        val device = device()
        device.start()
        gateway.welcome()
        device.setAddress("fcm", "the-address")
        val told = app.seen.toList() + listOf(device, DeviceConfig("ws://h", "1"), Push.fromJson(push(1))).map { it.toString() }
        assertEquals(emptyList<String>(), told.filter { "k-1" in it || "the-address" in it })
    }

    private fun device(stored: Storage = storage): CarillonDevice =
        CarillonDevice(DeviceConfig("ws://gateway/device/v1", "1000000001"), stored, app, gateway, timers, random = { 0.5 }).also(started::add)

    private fun threads(): Set<Thread> = Thread.getAllStackTraces().keys.filter { it.name.startsWith("carillon-") }.toSet()

    private fun CarillonDevice.stopAndWait() {
        val stopped = CountDownLatch(1)
        stop(stopped::countDown)
        assertTrue(stopped.await(BOUND_S, TimeUnit.SECONDS))
    }

    private fun push(msgid: Long, content: String = ""): String =
        """{"type":"push","msgid":$msgid,"is_notif":0,"content":"$content","expires_at":1}"""

    private fun vendors(msgid: Long): Map<String, String> = mapOf("carillon" to push(msgid))

    /** What the listener gets, described; `next` skips nothing but the first welcome. */
    private class App : DeviceListener {
        val seen = LinkedBlockingQueue<String>()
        val pushes = ArrayList<Push>()
        val kept = LinkedBlockingQueue<Done>()
        var blocked = CountDownLatch(0)

        @Volatile
        var keeps = false
        private var isFirst = true

        override fun onPush(push: Push, done: Done) {
            pushes.add(push)
            seen.add("push ${push.msgid}")
            if (push.content == "block") blocked.await(BOUND_S, TimeUnit.SECONDS)
            if (push.content == "fail") throw IllegalStateException("the app's own error")
            if (keeps) kept.add(done) else done.handled()
        }

        override fun onEvent(event: DeviceEvent) {
            seen.add(event.toString())
        }

        fun next(): String {
            val found = seen.poll(BOUND_S, TimeUnit.SECONDS) ?: throw AssertionError("the app got nothing")
            val isWelcome = isFirst && found.startsWith("welcome")
            if (isWelcome) isFirst = false
            return if (isWelcome) next() else found
        }
    }

    private class Answers<T> : Answer<T> {
        private val given = LinkedBlockingQueue<Result<T?>>()

        override fun onAnswer(value: T?, error: Exception?) {
            given.add(if (error == null) Result.success(value) else Result.failure(error))
        }

        fun next(): Result<T?> = given.poll(BOUND_S, TimeUnit.SECONDS) ?: throw AssertionError("no answer")
    }

    private class Recorded(@Volatile var text: String? = null) : Storage {
        @Volatile
        var calls = 0

        @Volatile
        var fails = false
        private val saved = LinkedBlockingQueue<String>()
        private val failed = LinkedBlockingQueue<String>()

        override fun load(): String? = text.also { calls++ }

        override fun save(text: String) {
            calls++
            if (fails) {
                failed.add(text)
                throw IllegalStateException("the disk is full")
            }
            this.text = text
            saved.add(text)
        }

        fun awaitSaved(isIt: (String) -> Boolean) {
            while (!isIt(saved.poll(BOUND_S, TimeUnit.SECONDS) ?: throw AssertionError("never saved"))) Unit
        }

        fun awaitFailure() {
            failed.poll(BOUND_S, TimeUnit.SECONDS) ?: throw AssertionError("no save has failed")
        }

        override fun toString(): String = "the storage"
    }

    private class Gateway : Connector {
        val opened = LinkedBlockingQueue<Opened>()

        override fun open(url: String, subprotocol: String, receiver: Connector.Receiver): Connection =
            Opened(receiver).also(opened::add)

        fun next(): Opened = opened.poll(BOUND_S, TimeUnit.SECONDS) ?: throw AssertionError("the device does not connect")

        /** Welcomes the next connection. */
        fun welcome(): Opened = next().apply {
            open()
            assertEquals("hello", sent()["type"])
            receive("""{"type": "welcome", "token": "t-1", "key": "k-1", "heartbeat": 70, "new": true}""")
        }
    }

    private class Opened(private val receiver: Connector.Receiver) : Connection {
        private val frames = LinkedBlockingQueue<String>()
        var isClosedBy: (Opened) -> Unit = {}

        @Volatile
        var isDropped = false

        fun open() = receiver.onOpen()

        fun receive(vararg frames: String) = receiver.onTexts(frames.toList())

        fun lose() = receiver.onClosed("connection lost")

        /** The next frame of the device. */
        fun sent(): Map<String, Any?> =
            decodeFrame(frames.poll(BOUND_S, TimeUnit.SECONDS) ?: throw AssertionError("the device sends nothing"))!!

        override fun send(text: String) {
            frames.add(text)
        }

        override fun close() = isClosedBy(this)

        override fun drop() {
            isDropped = true
        }
    }
}
