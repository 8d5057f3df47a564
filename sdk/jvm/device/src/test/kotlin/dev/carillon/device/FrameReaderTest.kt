package dev.carillon.device

import java.io.ByteArrayInputStream
import java.io.BufferedInputStream
import java.io.ByteArrayOutputStream
import java.io.EOFException
import java.io.IOException
import java.io.InputStream
import java.util.Random
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

class FrameReaderTest {
    @Test
    fun `the examples of RFC 6455`() {
        assertEquals(listOf("text Hello"), read(bytes("810548656c6c6f")))
        assertEquals(listOf("text Hello"), read(bytes("010348656c 80026c6f")))
        assertEquals(listOf("ping Hello"), read(bytes("890548656c6c6f")))
        assertEquals(listOf("binary"), read(bytes("827e0100") + ByteArray(256)))
        assertEquals(listOf("binary"), read(bytes("827f0000000000010000") + ByteArray(65536)))
        assertArrayEquals(bytes("818537fa213d7f9f4d5158"), frame(TEXT, "Hello".toByteArray(), bytes("37fa213d")))
    }

    @Test
    fun `control frames come between fragments, and pongs are not asked for`() {
        val sent = server(TEXT, "a", false) + server(PING, "p") + server(CONTINUATION, "b", false) + server(PONG, "") + server(CONTINUATION, "c")
        assertEquals(listOf("ping p", "pong", "text abc"), read(sent))
    }

    @Test
    fun `fragments may be empty, and split a character`() {
        val euro = "€".toByteArray()
        val sent = server(TEXT, ByteArray(0), false) + server(CONTINUATION, euro.copyOf(1), false) +
            server(CONTINUATION, euro.copyOfRange(1, 3), false) + server(CONTINUATION, ByteArray(0))
        assertEquals(listOf("text €"), read(sent))
    }

    @Test
    fun `violations end the connection with 1002`() {
        val violations = mapOf(
            "a reserved bit" to "c100", "another reserved bit" to "a100", "the last reserved bit" to "9100",
            "an unknown data frame" to "8300", "an unknown control frame" to "8b00", "a masked frame" to "818537fa213d7f9f4d5158",
            "a continuation of nothing" to "8000", "a fragmented ping" to "0900", "a long ping" to "897e007e",
            "a text within a text" to "010161 810162", "a binary message within a text" to "010161 820162",
            "a length of two bytes that fits one" to "817e007d", "a length of eight bytes that fits two" to "817f000000000000ffff",
            "a negative length" to "817fffffffffffffffff", "half a close code" to "880103",
        )
        for ((name, hex) in violations) assertEquals(name, PROTOCOL_ERROR, violation(bytes(hex)))
    }

    @Test
    fun `close codes that may be sent are answered with the same code, others are violations`() {
        val may = (1000..1003) + (1007..1014) + listOf(3000, 4000, 4999)
        for (code in may) assertEquals(listOf("close $code"), read(server(CLOSE, closePayload(code))))
        assertEquals(listOf("close 1000"), read(server(CLOSE, "")))
        assertEquals(listOf("close 1001"), read(server(CLOSE, closePayload(1001) + "going".toByteArray())))
        val mayNot = listOf(0, 1, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535)
        for (code in mayNot) assertEquals("$code", PROTOCOL_ERROR, violation(server(CLOSE, closePayload(code))))
        assertEquals(NO_UTF_8, violation(server(CLOSE, closePayload(1000) + byteArrayOf(-1))))
    }

    @Test
    fun `text that is not UTF-8 ends the connection with 1007`() {
        for (hex in listOf("ff", "c0af", "eda080", "f4908080", "e282", "80", "6180", "f8888080")) {
            assertEquals(hex, NO_UTF_8, violation(server(TEXT, bytes(hex))))
        }
        assertEquals(listOf("binary"), read(server(BINARY, bytes("ff"))))
    }

    @Test
    fun `a message of more than 1 MiB ends the connection with 1009, before it is read`() {
        val most = MAX_MESSAGE_BYTES
        assertEquals(listOf("text ${"a".repeat(most)}"), read(server(TEXT, "a".repeat(most))))
        assertEquals(TOO_BIG, violation(server(TEXT, ByteArray(most + 1)).copyOf(10)))
        assertEquals(TOO_BIG, violation(server(TEXT, ByteArray(most), false) + server(CONTINUATION, "a")))
        assertEquals(TOO_BIG, violation(bytes("817f7fffffffffffffff")))
        assertEquals(listOf("text ", "text "), read(server(TEXT, "") + server(TEXT, "")))
    }

    @Test
    fun `many small fragments of a large message cost no more than the message`() {
        val sent = ByteArrayOutputStream().apply { write(server(TEXT, "a", false)) }
        repeat(400_000) { sent.write(server(CONTINUATION, "a", false)) }
        sent.write(server(CONTINUATION, "a"))
        assertEquals(400_002, (FrameReader(ByteArrayInputStream(sent.toByteArray())).next() as Received.Text).text.length)
    }

    @Test
    fun `any fragments, in any pieces of the stream, make the same messages`() {
        for (seed in 0L until 500) {
            val random = Random(seed)
            val expected = ArrayList<String>()
            val sent = ByteArrayOutputStream()
            repeat(1 + random.nextInt(8)) {
                val text = text(random)
                val payload = text.toByteArray()
                val cuts = (List(random.nextInt(4)) { random.nextInt(payload.size + 1) } + 0 + payload.size).sorted()
                cuts.zipWithNext().forEachIndexed { index, (from, to) ->
                    if (random.nextBoolean()) {
                        sent.write(server(PING, "$index"))
                        expected.add("ping $index")
                    }
                    sent.write(server(if (index == 0) TEXT else CONTINUATION, payload.copyOfRange(from, to), index == cuts.size - 2))
                }
                expected.add("text $text")
            }
            val pieces = BufferedInputStream(Pieces(sent.toByteArray(), random))
            assertEquals("seed $seed", expected, read(FrameReader(pieces)))
        }
    }

    @Test
    fun `what is said to be here is read without the network`() {
        for (seed in 0L until 500) {
            val random = Random(seed)
            val sent = ByteArrayOutputStream()
            repeat(8) { sent.write(server(TEXT, text(random))) }
            val network = Pieces(sent.toByteArray(), random)
            val frames = FrameReader(BufferedInputStream(network))
            var read = 0
            while (read < 8) {
                if (frames.isNextHere()) network.isShut = true
                assertTrue("seed $seed", frames.next() is Received.Text)
                network.isShut = false
                read++
            }
        }
    }

    @Test
    fun `a client's frame is what a server reads`() {
        for (seed in 0L until 300) {
            val random = Random(seed)
            val payload = ByteArray(listOf(0, 1, 125, 126, 65535, 65536, random.nextInt(2000))[random.nextInt(7)]).also(random::nextBytes)
            val mask = ByteArray(4).also(random::nextBytes)
            val sent = frame(BINARY, payload, mask)
            val length = sent[1].toInt() and 0x7f
            val at = 2 + (if (length < 126) 0 else if (length == 126) 2 else 8)
            assertArrayEquals("seed $seed", mask, sent.copyOfRange(at, at + 4))
            val unmasked = sent.copyOfRange(at + 4, sent.size).mapIndexed { index, byte -> (byte.toInt() xor mask[index % 4].toInt()).toByte() }
            assertArrayEquals("seed $seed", payload, unmasked.toByteArray())
            assertEquals("seed $seed", sent[1].toInt() and 0x80, 0x80)
            val head = sent.copyOf(at).also { it[1] = (it[1].toInt() and 0x7f).toByte() }
            assertArrayEquals("seed $seed", server(BINARY, payload).copyOf(at), head)
        }
    }

    @Test
    fun `bytes of chance end in an error, and in nothing else`() {
        for (seed in 0L until 20_000) {
            val random = Random(seed)
            val sent = if (random.nextBoolean()) ByteArray(random.nextInt(40)).also(random::nextBytes) else damaged(random)
            assertThrows("seed $seed", IOException::class.java) { FrameReader(ByteArrayInputStream(sent)).run { while (true) next() } }
        }
    }

    private fun damaged(random: Random): ByteArray {
        val sent = server(TEXT, text(random), random.nextBoolean()) + server(random.nextInt(16), text(random), random.nextBoolean())
        sent[random.nextInt(sent.size)] = random.nextInt().toByte()
        return sent
    }

    private fun text(random: Random): String = "aé€😀".repeat(random.nextInt(1 shl random.nextInt(10)))

    private fun violation(sent: ByteArray): Int =
        assertThrows(WebSocketException::class.java) { FrameReader(ByteArrayInputStream(sent)).run { while (true) next() } }.code

    private fun read(sent: ByteArray): List<String> = read(FrameReader(ByteArrayInputStream(sent)))

    private fun read(frames: FrameReader): List<String> {
        val read = ArrayList<String>()
        try {
            while (true) read.add(described(frames.next()))
        } catch (_: EOFException) {
            return read
        }
    }

    private fun described(received: Received): String = when (received) {
        is Received.Text -> "text ${received.text}"
        is Received.Binary -> "binary"
        is Received.Ping -> "ping ${String(received.payload)}"
        is Received.Pong -> "pong"
        is Received.Close -> "close ${received.code}"
    }

    private fun server(opcode: Int, payload: String, isLast: Boolean = true) = server(opcode, payload.toByteArray(), isLast)

    private fun server(opcode: Int, payload: ByteArray, isLast: Boolean = true): ByteArray {
        val size = payload.size
        val first = (if (isLast) 0x80 else 0) or opcode
        val head = when {
            size < 126 -> listOf(first, size)
            size < 65536 -> listOf(first, 126, size ushr 8, size)
            else -> listOf(first, 127, 0, 0, 0, 0, size ushr 24, size ushr 16, size ushr 8, size)
        }
        return head.map { it.toByte() }.toByteArray() + payload
    }

    private fun bytes(hex: String): ByteArray =
        hex.filter { it != ' ' }.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

    /** A stream that returns pieces of any length, and none while it `isShut`. */
    private class Pieces(private val sent: ByteArray, private val random: Random) : InputStream() {
        private var at = 0
        var isShut = false

        override fun read(): Int = ByteArray(1).let { if (read(it, 0, 1) < 0) -1 else it[0].toInt() and 0xff }

        override fun read(to: ByteArray, start: Int, most: Int): Int {
            check(!isShut) { "the network was asked" }
            if (at == sent.size) return -1
            val count = minOf(most, sent.size - at, 1 + random.nextInt(1 shl random.nextInt(12)))
            sent.copyInto(to, start, at, at + count)
            at += count
            return count
        }

        override fun available(): Int = 0
    }
}
