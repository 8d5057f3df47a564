package dev.carillon.device

/** Opens connections to the gateway; `WebSocketConnector` does so by sockets of its own. */
public interface Connector {
    /**
     * Begins to open a WebSocket to `url` and returns at once; it follows no redirect. `receiver` is told what happens,
     * from any thread, one call at a time: `onOpen` first, `onClosed` once and last.
     */
    public fun open(url: String, subprotocol: String, receiver: Receiver): Connection

    /** Receives what happens on one connection. A call may block while the device is busy. */
    public interface Receiver {
        public fun onOpen()

        /** Text messages, at least one, in their order; those that came together are handed over together. */
        public fun onTexts(texts: List<String>)

        /** The connection could not be opened, was lost, or was closed; `reason` is for people. */
        public fun onClosed(reason: String)
    }
}

/** A connection that is open or is being opened. No call blocks. */
public interface Connection {
    /** Sends a text message; without effect after the connection's end. */
    public fun send(text: String)

    /** Closes with the closing handshake and the code 1000; messages that were sent before still arrive. */
    public fun close()

    /** Closes at once. */
    public fun drop()
}
