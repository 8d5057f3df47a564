package dev.carillon.okhttp

import dev.carillon.device.Driver
import dev.carillon.device.trusted
import java.util.logging.Level
import java.util.logging.Logger
import okhttp3.OkHttpClient

/** Runs one device over OkHttp for the conformance tests. */
internal fun main() {
    Logger.getLogger("dev.carillon.device").level = Level.OFF
    var client = OkHttpClient()
    Driver { authorities ->
        if (authorities != null) client = trusting(authorities)
        OkHttpConnector(client)
    }.run()
    client.dispatcher.executorService.shutdown()
}

private fun trusting(authorities: String): OkHttpClient {
    val (sockets, manager) = trusted(authorities)
    return OkHttpClient.Builder().sslSocketFactory(sockets, manager).build()
}
