package dev.carillon.device

import java.io.BufferedInputStream
import java.io.IOException
import java.io.InputStream
import java.io.OutputStream
import java.net.InetAddress
import java.net.InetSocketAddress
import java.net.Socket
import java.net.URI
import java.net.URISyntaxException
import java.security.MessageDigest
import java.security.SecureRandom
import java.util.concurrent.LinkedBlockingQueue
import javax.net.SocketFactory
import javax.net.ssl.SSLSocket
import javax.net.ssl.SSLSocketFactory

private const val MAX_HEAD_BYTES = 16 * 1024
private const val MAX_UNSENT_FRAMES = 2000
private const val MAX_TOGETHER = 100

/** All addresses of a host are tried, one after the other; so the first, if it is dead, must not take all the time. */
private const val ADDRESSES_MS = 8_000
private const val MIN_ADDRESS_MS = 2_000

/** How long the close frame that answers the server's may take until the socket is closed. */
private const val CLOSE_FRAME_MS = 1_000L

private const val MAX_SHOWN = 200
private const val BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
private const val ACCEPT_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

/**
 * WebSockets (RFC 6455) over sockets, each with two threads. wss:// verifies the certificate and the host name.
 *
 * `tls` decides which authorities are trusted, the system's by default; `sockets` makes the TCP sockets.
 */
public class WebSocketConnector @JvmOverloads constructor(
    private val tls: SSLSocketFactory? = null,
    private val sockets: SocketFactory = SocketFactory.getDefault(),
) : Connector {
    override fun open(url: String, subprotocol: String, receiver: Connector.Receiver): Connection {
        val connection = SocketConnection(GatewayAddress(url), subprotocol, receiver)
        connection.start()
        return connection
    }

    private inner class SocketConnection(
        private val address: GatewayAddress,
        private val subprotocol: String,
        private val receiver: Connector.Receiver,
    ) : Connection {
        private val lock = Any()
        private val random = SecureRandom()

        /** Frames to write; an empty one ends the connection. */
        private val unsent = LinkedBlockingQueue<ByteArray>(MAX_UNSENT_FRAMES)

        /** The TCP socket, also below TLS: closing it ends every read and write at once. */
        private var tcp: Socket? = null
        private var isOver = false
        private var isClosing = false

        @Volatile
        private var writer: Thread? = null

        fun start(): Thread = thread("carillon-reader") {
            val reason = try {
                val socket = connect()
                val input = BufferedInputStream(socket.getInputStream())
                val output = socket.getOutputStream()
                handshake(input, output)
                writer = thread("carillon-writer") { write(output) }
                receiver.onOpen()
                read(FrameReader(input))
            } catch (error: Exception) {
                error.message ?: error.javaClass.simpleName
            }
            drop()
            receiver.onClosed(reason)
        }

        override fun send(text: String) = write(TEXT, text.toByteArray())

        override fun close() = synchronized(lock) {
            if (!isClosing) write(CLOSE, closePayload(NORMAL))
            isClosing = true
        }

        override fun drop() {
            val socket = synchronized(lock) {
                isOver = true
                tcp
            }
            unsent.clear()
            unsent.offer(ByteArray(0))
            runCatching { socket?.close() }
        }

        private fun connect(): Socket {
            val found = InetAddress.getAllByName(address.host)
            val timeoutMs = maxOf(MIN_ADDRESS_MS, ADDRESSES_MS / found.size)
            val socket = found.withIndex().firstNotNullOf { (index, one) ->
                try {
                    connected(one, timeoutMs)
                } catch (error: IOException) {
                    if (index == found.lastIndex || synchronized(lock) { isOver }) throw error else null
                }
            }
            socket.tcpNoDelay = true
            return if (address.isSecure) secured(socket) else socket
        }

        private fun connected(to: InetAddress, timeoutMs: Int): Socket {
            val socket = sockets.createSocket()
            synchronized(lock) {
                if (isOver) throw IOException("the connection was dropped")
                tcp = socket
            }
            try {
                socket.connect(InetSocketAddress(to, address.port), timeoutMs)
            } catch (error: IOException) {
                socket.close()
                throw error
            }
            return socket
        }

        private fun secured(socket: Socket): Socket {
            val factory = tls ?: SSLSocketFactory.getDefault() as SSLSocketFactory
            val secure = factory.createSocket(socket, address.host, address.port, true) as SSLSocket
            secure.sslParameters = secure.sslParameters.apply { endpointIdentificationAlgorithm = "HTTPS" }
            secure.startHandshake()
            return secure
        }

        private fun handshake(input: InputStream, output: OutputStream) {
            val key = base64(ByteArray(16).also(random::nextBytes))
            val head = listOf(
                "GET ${address.target} HTTP/1.1", "Host: ${address.authority}", "Upgrade: websocket",
                "Connection: Upgrade", "Sec-WebSocket-Key: $key", "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Protocol: $subprotocol",
            )
            output.write((head.joinToString("\r\n") + "\r\n\r\n").toByteArray())
            output.flush()
            checkAnswer(readHead(input), key, subprotocol)
        }

        /** Handles what the server sends until its close frame; returns the reason of the end. */
        private fun read(frames: FrameReader): String {
            while (true) {
                val texts = ArrayList<String>()
                try {
                    do {
                        when (val received = frames.next()) {
                            is Received.Text -> texts.add(received.text)
                            is Received.Ping -> write(PONG, received.payload)
                            is Received.Close -> return "connection lost".also { closeAfter(received.code) }
                            is Received.Pong, is Received.Binary -> {}
                        }
                    } while (texts.size < MAX_TOGETHER && frames.isNextHere())
                } catch (error: WebSocketException) {
                    closeAfter(error.code)
                    throw error
                } finally {
                    if (texts.isNotEmpty()) receiver.onTexts(texts)
                }
            }
        }

        /** Sends a close frame, unless one was sent, and waits until it is on its way: the socket is closed then. */
        private fun closeAfter(code: Int) {
            synchronized(lock) {
                if (!isClosing) write(CLOSE, closePayload(code))
                isClosing = true
            }
            unsent.offer(ByteArray(0))
            writer?.join(CLOSE_FRAME_MS)
        }

        private fun write(opcode: Int, payload: ByteArray) {
            val encoded = frame(opcode, payload, ByteArray(4).also(random::nextBytes))
            synchronized(lock) { if (isOver || isClosing || unsent.offer(encoded)) return }
            drop()
        }

        private fun write(output: OutputStream) {
            try {
                while (true) {
                    val next = unsent.take()
                    if (next.isEmpty()) return
                    output.write(next)
                    output.flush()
                }
            } catch (_: IOException) {
                drop()
            }
        }
    }
}

/** The parts of a ws:// or wss:// URL. */
internal class GatewayAddress(url: String) {
    private val uri = try {
        URI(url)
    } catch (_: URISyntaxException) {
        throw IllegalArgumentException("$url is no URL")
    }
    val isSecure: Boolean = uri.scheme == "wss"

    init {
        require(isSecure || uri.scheme == "ws") { "$url is no ws:// or wss:// URL" }
        require(uri.host != null && uri.userInfo == null) { "$url names no host" }
    }

    /** Without the brackets of an IPv6 address. */
    val host: String = uri.host.removeSurrounding("[", "]")
    val port: Int = if (uri.port >= 0) uri.port else if (isSecure) 443 else 80
    val authority: String = if (uri.port >= 0) "${uri.host}:${uri.port}" else uri.host
    val target: String = (uri.rawPath.ifEmpty { "/" }) + (uri.rawQuery?.let { "?$it" } ?: "")
}

/** Reads the head of an HTTP answer; nothing of what follows it. */
internal fun readHead(input: InputStream): List<String> {
    val head = StringBuilder()
    while (!head.endsWith("\r\n\r\n")) {
        val byte = input.read()
        if (byte < 0) throw IOException("the gateway closed the connection before it answered")
        if (head.length == MAX_HEAD_BYTES) throw IOException("the gateway's answer has too long a head")
        head.append(byte.toChar())
    }
    return head.trimEnd().split("\r\n")
}

/** IOException: the answer does not open a WebSocket of this key. */
internal fun checkAnswer(head: List<String>, key: String, subprotocol: String) {
    val status = head[0].split(" ", limit = 3)
    if (status[0] != "HTTP/1.1" || status.getOrNull(1) != "101") {
        throw IOException("the gateway answers \"${head[0].take(MAX_SHOWN)}\" and opens no WebSocket")
    }
    val headers = head.drop(1).groupBy({ it.substringBefore(':').trim().lowercase() }, { it.substringAfter(':').trim() })
    fun values(name: String) = headers[name].orEmpty().flatMap { it.split(",") }.map { it.trim().lowercase() }
    val digest = MessageDigest.getInstance("SHA-1").digest((key + ACCEPT_GUID).toByteArray())
    val isAccepted = "websocket" in values("upgrade") && "upgrade" in values("connection") &&
        headers["sec-websocket-accept"] == listOf(base64(digest)) &&
        "sec-websocket-extensions" !in headers &&
        headers["sec-websocket-protocol"].orEmpty().all { it == subprotocol }
    if (!isAccepted) throw IOException("the gateway's answer is none to this WebSocket request")
}

/** RFC 4648; `java.util.Base64` came with Android 8. */
internal fun base64(bytes: ByteArray): String {
    val text = StringBuilder()
    for (start in bytes.indices step 3) {
        val count = minOf(3, bytes.size - start)
        var bits = 0
        for (index in 0 until 3) bits = bits shl 8 or if (index < count) bytes[start + index].toInt() and 0xff else 0
        for (index in 0 until 4) text.append(if (index <= count) BASE64[bits ushr 18 - 6 * index and 63] else '=')
    }
    return text.toString()
}

private fun thread(name: String, work: () -> Unit): Thread =
    Thread(work, name).apply {
        isDaemon = true
        start()
    }
