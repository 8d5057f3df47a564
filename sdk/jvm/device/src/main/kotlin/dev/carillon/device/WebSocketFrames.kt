package dev.carillon.device

import java.io.ByteArrayOutputStream
import java.io.EOFException
import java.io.IOException
import java.io.InputStream
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException

/** The largest message that a device accepts, in bytes; pushes are far smaller. */
internal const val MAX_MESSAGE_BYTES = 1024 * 1024

internal const val CONTINUATION = 0
internal const val TEXT = 1
internal const val BINARY = 2
internal const val CLOSE = 8
internal const val PING = 9
internal const val PONG = 10

internal const val NORMAL = 1000
internal const val PROTOCOL_ERROR = 1002
internal const val NO_UTF_8 = 1007
internal const val TOO_BIG = 1009
private const val MAX_CONTROL_BYTES = 125
private const val MAX_HEADER_BYTES = 10

/** The server violated RFC 6455, or sent more than a device accepts; the connection is closed with `code`. */
internal class WebSocketException(val code: Int, message: String) : IOException(message)

/** What a server sent: a message that is complete, or a control frame. */
internal sealed class Received {
    class Text(val text: String) : Received()

    /** Binary messages do not belong to the device protocol. */
    object Binary : Received()

    class Ping(val payload: ByteArray) : Received()

    object Pong : Received()

    /** `code` is the one with which a close frame answers; NORMAL where the server's had none. */
    class Close(val code: Int) : Received()
}

/**
 * Reads the frames of a server as RFC 6455 defines them; messages may be fragmented, control frames in between. `input`
 * has a buffer and can be reset.
 */
internal class FrameReader(private val input: InputStream) {
    private val message = ByteArrayOutputStream()

    /** TEXT or BINARY while a fragmented message is read, else 0. */
    private var kind = 0

    /** Returns the next message or control frame. WebSocketException, and IOException at the end of the stream. */
    fun next(): Received {
        while (true) {
            val first = byte()
            if (first and 0x70 != 0) violated("reserved bits are set")
            val isLast = first and 0x80 != 0
            val opcode = first and 0x0f
            val length = length(opcode)
            if (opcode >= CLOSE) {
                if (!isLast) violated("a fragmented control frame")
                if (length > MAX_CONTROL_BYTES) violated("a control frame of more than $MAX_CONTROL_BYTES bytes")
                return control(opcode, bytes(length.toInt()))
            }
            begin(opcode)
            if (length > MAX_MESSAGE_BYTES - message.size()) throw WebSocketException(TOO_BIG, "a message of more than 1 MiB")
            message.write(bytes(length.toInt()), 0, length.toInt())
            if (isLast) return complete()
        }
    }

    /** Whether `next` returns a whole message or a control frame without waiting for the network. */
    fun isNextHere(): Boolean {
        if (kind != 0 || input.available() < 2) return false
        input.mark(MAX_HEADER_BYTES)
        try {
            if (byte() and 0x80 == 0) return false
            var length = byte().toLong() and 0x7f
            val size = if (length < 126) 0 else if (length == 126L) 2 else 8
            if (input.available() < size) return false
            if (size > 0) length = 0
            repeat(size) { length = (length shl 8) or byte().toLong() }
            return input.available() >= length
        } finally {
            input.reset()
        }
    }

    private fun begin(opcode: Int) {
        when (opcode) {
            CONTINUATION -> if (kind == 0) violated("a continuation of no message")
            TEXT, BINARY -> if (kind == 0) kind = opcode else violated("a message within another one")
            else -> violated("an unknown opcode")
        }
    }

    private fun complete(): Received {
        val payload = message.toByteArray()
        val isText = kind == TEXT
        message.reset()
        kind = 0
        return if (isText) Received.Text(utf8(payload)) else Received.Binary
    }

    private fun control(opcode: Int, payload: ByteArray): Received = when (opcode) {
        PING -> Received.Ping(payload)
        PONG -> Received.Pong
        CLOSE -> Received.Close(closeCode(payload))
        else -> violated("an unknown opcode")
    }

    private fun closeCode(payload: ByteArray): Int {
        if (payload.isEmpty()) return NORMAL
        if (payload.size == 1) violated("half a close code")
        val code = (payload[0].toInt() and 0xff shl 8) or (payload[1].toInt() and 0xff)
        val isKnown = code in 1000..1014 && code !in 1004..1006 || code in 3000..4999
        if (!isKnown) violated("a wrong close code")
        utf8(payload.copyOfRange(2, payload.size))
        return code
    }

    private fun length(opcode: Int): Long {
        val second = byte()
        if (second and 0x80 != 0) violated("a masked frame")
        val short = second and 0x7f
        if (short < 126) return short.toLong()
        if (opcode >= CLOSE) violated("a control frame of more than $MAX_CONTROL_BYTES bytes")
        val size = if (short == 126) 2 else 8
        var length = 0L
        repeat(size) { length = (length shl 8) or byte().toLong() }
        if (length < (if (size == 2) 126 else 0x10000)) violated("a length that is not minimal, or negative")
        return length
    }

    private fun byte(): Int = input.read().also { if (it < 0) throw EOFException("the connection was lost") }

    private fun bytes(length: Int): ByteArray {
        val read = ByteArray(length)
        var at = 0
        while (at < length) {
            val count = input.read(read, at, length - at)
            if (count < 0) throw EOFException("the connection was lost")
            at += count
        }
        return read
    }

    private fun violated(how: String): Nothing = throw WebSocketException(PROTOCOL_ERROR, "no WebSocket frame: $how")
}

/** Returns a frame of a client, which is a whole message; `mask` has four bytes of chance. */
internal fun frame(opcode: Int, payload: ByteArray, mask: ByteArray): ByteArray {
    val size = payload.size
    val extended = if (size < 126) 0 else if (size < 0x10000) 2 else 8
    val encoded = ByteArray(2 + extended + mask.size + size)
    encoded[0] = (0x80 or opcode).toByte()
    encoded[1] = (0x80 or (if (extended == 0) size else if (extended == 2) 126 else 127)).toByte()
    for (index in 0 until extended) encoded[2 + index] = (size.toLong() ushr 8 * (extended - 1 - index)).toByte()
    mask.copyInto(encoded, 2 + extended)
    val start = 2 + extended + mask.size
    for (index in payload.indices) encoded[start + index] = (payload[index].toInt() xor mask[index and 3].toInt()).toByte()
    return encoded
}

/** Returns the payload of a close frame. */
internal fun closePayload(code: Int): ByteArray = byteArrayOf((code ushr 8).toByte(), code.toByte())

private fun utf8(payload: ByteArray): String = try {
    Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(payload)).toString()
} catch (_: CharacterCodingException) {
    throw WebSocketException(NO_UTF_8, "text that is not UTF-8")
}
