package com.google.firebase.messaging

import android.app.Service
import android.content.Intent
import android.os.IBinder

/** What the SDK's page calls of Firebase's library, which is in no registry that this build reads: its programs are compiled against these. */
open class FirebaseMessagingService : Service() {
    open fun onNewToken(token: String) {}

    open fun onMessageReceived(message: RemoteMessage) {}

    override fun onBind(intent: Intent): IBinder? = null
}

class RemoteMessage(val data: Map<String, String>, val notification: Notification?) {
    class Notification(val title: String?, val body: String?)
}

class FirebaseMessaging(val token: Task<String>) {
    fun interface Task<T> {
        fun addOnSuccessListener(listener: (T) -> Unit): Task<T>
    }

    companion object {
        fun getInstance(): FirebaseMessaging = FirebaseMessaging { throw UnsupportedOperationException() }
    }
}
