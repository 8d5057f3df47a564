package dev.carillon.device

import java.io.ByteArrayInputStream
import java.io.IOException
import java.util.Base64
import java.util.Random
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test

class HandshakeTest {
    /** The key and its answer in RFC 6455, section 1.3. */
    private val key = "dGhlIHNhbXBsZSBub25jZQ=="
    private val accepted = listOf(
        "HTTP/1.1 101 Switching Protocols", "Upgrade: WebSocket", "connection: keep-alive, Upgrade",
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "Sec-WebSocket-Protocol: $SUBPROTOCOL", "X-Other: a:b",
    )

    @Test
    fun `an answer to the key opens the connection`() {
        checkAnswer(accepted, key, SUBPROTOCOL)
        checkAnswer(accepted.filter { !it.startsWith("Sec-WebSocket-Protocol") }, key, SUBPROTOCOL)
    }

    @Test
    fun `any other answer does not`() {
        val wrong = mapOf(
            0 to listOf("HTTP/1.1 302 Found", "HTTP/1.1 200 OK", "HTTP/1.1 401 Unauthorized", "HTTP/1.0 101 Old", "HTTP/1.1", ""),
            1 to listOf("Upgrade: h2c", "Update: websocket"), 2 to listOf("Connection: close"),
            3 to listOf("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOO=", "X: y"),
            4 to listOf("Sec-WebSocket-Protocol: chat"), 5 to listOf("Sec-WebSocket-Extensions: permessage-deflate"),
        )
        for ((line, texts) in wrong) for (text in texts) {
            val answer = accepted.toMutableList().also { it[line] = text }
            assertThrows(text, IOException::class.java) { checkAnswer(answer, key, SUBPROTOCOL) }
        }
        val redirect = assertThrows(IOException::class.java) { checkAnswer(listOf("HTTP/1.1 302 Found", "Location: https://other"), key, SUBPROTOCOL) }
        assertEquals("the gateway answers \"HTTP/1.1 302 Found\" and opens no WebSocket", redirect.message)
    }

    @Test
    fun `a head is read to its end and no further, and has a bound`() {
        val input = ByteArrayInputStream("HTTP/1.1 101 S\r\nA: b\r\n\r\n\u0001".toByteArray())
        assertEquals(listOf("HTTP/1.1 101 S", "A: b"), readHead(input))
        assertEquals(1, input.read())
        for (text in listOf("", "HTTP/1.1 101 S\r\n", "a".repeat(1 shl 20))) {
            assertThrows(IOException::class.java) { readHead(ByteArrayInputStream(text.toByteArray())) }
        }
    }

    @Test
    fun `URLs have a scheme and a host`() {
        fun parts(url: String) = GatewayAddress(url).run { listOf(isSecure, host, port, authority, target) }
        assertEquals(listOf(true, "push.example.org", 443, "push.example.org", "/device/v1"), parts("wss://push.example.org/device/v1"))
        assertEquals(listOf(false, "h", 8400, "h:8400", "/?a=%20b"), parts("ws://h:8400?a=%20b"))
        assertEquals(listOf(true, "::1", 9, "[::1]:9", "/"), parts("wss://[::1]:9"))
        for (url in listOf("https://h/", "h", "ws://", "ws:///a", "wss://a b/", "wss://user:secret@h/", "")) {
            assertThrows(url, IllegalArgumentException::class.java) { DeviceConfig(url, "1") }
        }
    }

    @Test
    fun `base64 is that of RFC 4648`() {
        for (seed in 0L until 200) {
            val bytes = ByteArray(seed.toInt() % 40).also(Random(seed)::nextBytes)
            assertArrayEquals("seed $seed", bytes, Base64.getDecoder().decode(base64(bytes)))
        }
    }
}
