package dev.carillon.okhttp

import dev.carillon.device.Connection
import dev.carillon.device.Connector
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean
import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.Response
import okhttp3.WebSocket
import okhttp3.WebSocketListener

private const val NORMAL = 1000
private const val PROTOCOL_HEADER = "Sec-WebSocket-Protocol"

/**
 * WebSockets by an OkHttp client of the app: with its proxy, DNS, interceptors, trusted authorities and pinned certificates.
 *
 * The client follows no redirect here and sends no pings of its own, which would wake the phone's radio: the device has
 * its heartbeat. Its dispatcher and its connection pool are those of the app's client.
 */
public class OkHttpConnector(client: OkHttpClient) : Connector {
    private val client = client.newBuilder()
        .followRedirects(false)
        .followSslRedirects(false)
        .pingInterval(0, TimeUnit.SECONDS)
        .build()

    override fun open(url: String, subprotocol: String, receiver: Connector.Receiver): Connection {
        val request = Request.Builder().url(url).header(PROTOCOL_HEADER, subprotocol).build()
        return OkHttpConnection(client.newWebSocket(request, Listener(subprotocol, receiver)))
    }

    private class OkHttpConnection(private val socket: WebSocket) : Connection {
        override fun send(text: String) {
            socket.send(text)
        }

        override fun close() {
            socket.close(NORMAL, null)
        }

        override fun drop(): Unit = socket.cancel()
    }

    private class Listener(private val subprotocol: String, private val receiver: Connector.Receiver) : WebSocketListener() {
        private val isOver = AtomicBoolean()

        override fun onOpen(webSocket: WebSocket, response: Response) {
            val chosen = response.header(PROTOCOL_HEADER)
            if (chosen == null || chosen == subprotocol) return receiver.onOpen()
            webSocket.cancel()
            over("the gateway speaks $chosen")
        }

        override fun onMessage(webSocket: WebSocket, text: String) {
            if (!isOver.get()) receiver.onTexts(listOf(text))
        }

        override fun onClosing(webSocket: WebSocket, code: Int, reason: String) {
            val isAnswered = try {
                webSocket.close(code, null)
            } catch (_: IllegalArgumentException) { // a code that no close frame may have, such as 1005 for none
                false
            }
            if (!isAnswered) webSocket.close(NORMAL, null)
        }

        override fun onClosed(webSocket: WebSocket, code: Int, reason: String) = over("connection lost")

        override fun onFailure(webSocket: WebSocket, t: Throwable, response: Response?) =
            over(t.message ?: t.javaClass.simpleName)

        private fun over(reason: String) {
            if (isOver.compareAndSet(false, true)) receiver.onClosed(reason)
        }
    }
}
