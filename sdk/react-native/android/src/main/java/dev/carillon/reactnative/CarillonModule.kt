package dev.carillon.reactnative

import android.content.Intent
import com.facebook.react.bridge.BaseActivityEventListener
import com.facebook.react.bridge.Promise
import com.facebook.react.bridge.ReactApplicationContext
import com.facebook.react.bridge.ReadableArray
import com.facebook.react.bridge.ReadableMap
import dev.carillon.android.Carillon
import dev.carillon.device.Answer
import dev.carillon.device.CarillonDevice
import dev.carillon.device.DeadlineException
import dev.carillon.device.EndedException
import dev.carillon.device.RefusedException
import org.json.JSONObject

/** The native module: hands each call of index.js over to the SDK for Android. */
internal class CarillonModule(private val context: ReactApplicationContext) : NativeCarillonSpec(context) {
    private val listener: (String) -> Unit = { emitOnEvent(it) }
    private val intents = object : BaseActivityEventListener() {
        override fun onNewIntent(intent: Intent) {
            context.currentActivity?.let { Carillon.onIntent(it, intent) }
        }
    }

    override fun initialize(): Unit = context.addActivityEventListener(intents)

    override fun invalidate() {
        context.removeActivityEventListener(intents)
        CarillonReact.leave(listener)
    }

    override fun start(url: String, appkey: String, options: ReadableMap, promise: Promise) {
        val asked = JSONObject(options.toHashMap() as Map<*, *>).put("url", url).put("appkey", appkey)
        try {
            CarillonReact.start(context.applicationContext, asked)
            promise.resolve(null)
        } catch (error: IllegalArgumentException) {
            promise.reject("argument", error.message)
        }
    }

    override fun stop(promise: Promise): Unit = CarillonReact.stop(context.applicationContext) { promise.resolve(null) }

    /** The click on a notification that has started the app is in the intent of its activity. */
    override fun listen() {
        CarillonReact.listen(listener)
        context.currentActivity?.let { Carillon.onIntent(it, it.intent) }
    }

    override fun handled(eventId: Double, error: String?): Unit = CarillonReact.handled(eventId.toLong(), error)

    override fun setAlias(alias: String, proof: String?, promise: Promise): Unit =
        request(promise) { setAlias(alias, proof, it) }

    override fun clearAlias(promise: Promise): Unit = request(promise) { clearAlias(it) }

    override fun addTags(tags: ReadableArray, proof: String?, promise: Promise): Unit =
        request(promise) { addTags(numbers(tags), proof, it) }

    override fun removeTags(tags: ReadableArray, promise: Promise): Unit =
        request(promise) { removeTags(numbers(tags), it) }

    override fun addStags(stags: ReadableArray, proof: String?, promise: Promise): Unit =
        request(promise) { addStags(texts(stags), proof, it) }

    override fun removeStags(stags: ReadableArray, promise: Promise): Unit =
        request(promise) { removeStags(texts(stags), it) }

    override fun setAttributes(attributes: ReadableMap, promise: Promise): Unit =
        request(promise) { setAttributes(texts(attributes), it) }

    override fun getDevice(promise: Promise) {
        val device = Carillon.device ?: return promise.reject("unavailable", NOT_STARTED)
        device.getDevice { known, error ->
            if (known == null) return@getDevice promise.reject(codeOf(error), error?.message)
            val fields = mapOf("tags" to known.tags, "stags" to known.stags, "attributes" to known.attributes)
            promise.resolve(JSONObject(fields).put("alias", known.alias ?: JSONObject.NULL).toString())
        }
    }

    override fun setAddress(channel: String, address: String): Unit = Carillon.setAddress(channel, address)

    override fun clearAddress(channel: String): Unit = Carillon.clearAddress(channel)

    override fun takeMessage(data: ReadableMap, title: String?, content: String?, promise: Promise): Unit =
        promise.resolve(Carillon.onMessage(texts(data), title, content))

    override fun report(event: String, msgid: Double): Unit = Carillon.report(context, event, msgid.toLong())

    override fun activity(event: String) {
        Carillon.device?.activity(event)
    }

    override fun setBadge(count: Double): Unit = Carillon.setBadge(count.toInt())

    /** index.js asks by React Native's own PermissionsAndroid. */
    override fun requestPermission(promise: Promise): Unit = promise.resolve(true)

    private fun request(promise: Promise, send: CarillonDevice.(Answer<Unit>) -> Unit) {
        val device = Carillon.device ?: return promise.reject("unavailable", NOT_STARTED)
        device.send { _, error ->
            if (error == null) promise.resolve(null) else promise.reject(codeOf(error), error.message)
        }
    }

    /** The service's code, or the kind of an error without one. */
    private fun codeOf(error: Exception?): String = when (error) {
        is RefusedException -> error.code.toString()
        is DeadlineException -> "deadline"
        is EndedException -> "ended"
        else -> "unavailable"
    }

    private fun numbers(array: ReadableArray): List<Int> = List(array.size()) { array.getInt(it) }

    private fun texts(array: ReadableArray): List<String> = List(array.size()) { array.getString(it).orEmpty() }

    private fun texts(map: ReadableMap): Map<String, String> = (map.toHashMap() as Map<*, *>).entries
        .associate { (name, value) -> name.toString() to value.toString() }

    private companion object {
        const val NOT_STARTED = "call start first"
    }
}
