package dev.carillon.android

import android.app.Activity
import android.app.Notification
import android.view.View
import dev.carillon.device.DeviceEvent
import dev.carillon.device.Done
import dev.carillon.device.Push

/**
 * What an app does with its pushes. Set it as `Carillon.handler` in `Application.onCreate`, so that it is there whatever
 * has started the process. All calls come from the main thread.
 */
public interface PushHandler {
    /**
     * Takes a push that is for the app alone, and shows nothing. Say `done.handled()`, here or later on any thread: the
     * push is then saved as handled, and acknowledged. One that `failed`, or that takes over 30 s, is sent again later.
     */
    public fun onMessage(push: Push, done: Done)

    /** Returns whether the SDK shows the notification; false: the app has shown it, or wants none. */
    public fun onNotification(push: Push): Boolean = true

    /** Changes a notification before it is shown: its small icon, colour, channel, actions. */
    public fun style(push: Push, builder: Notification.Builder) {}

    /**
     * The user has clicked on a notification. Returns whether the app itself opens what the click names; false: the SDK
     * does. A click that came before there was a handler was carried out by the SDK, and is told as soon as there is one.
     */
    public fun onClick(push: Push): Boolean = false

    /** Returns the view that shows a page of the click actions 4 to 7; null: the SDK shows its own. */
    public fun view(activity: Activity, page: Page): View? = null

    /** The number of the app's icon has changed: for launchers that learn of it in a way of their own. */
    public fun onBadge(count: Int) {}

    public fun onEvent(event: DeviceEvent) {}
}
