package dev.carillon.android.ktx

import dev.carillon.android.PushHandler
import dev.carillon.device.DeviceEvent
import dev.carillon.device.Done
import dev.carillon.device.Push
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.channels.BufferOverflow
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.MutableSharedFlow
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.SharedFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asSharedFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.receiveAsFlow
import kotlinx.coroutines.launch

/** Events that a slow collector may be behind; it misses the oldest of more. */
private const val MAX_EVENTS = 64

/** Clicks that wait for a collector. */
private const val MAX_CLICKS = 200

/**
 * A PushHandler of an app that is written with coroutines. `scope` lives as long as the process: pushes come while no
 * activity is there.
 */
public abstract class CoroutineHandler(private val scope: CoroutineScope) : PushHandler {
    private val told = MutableSharedFlow<DeviceEvent>(extraBufferCapacity = MAX_EVENTS, onBufferOverflow = BufferOverflow.DROP_OLDEST)
    private val connected = MutableStateFlow(false)
    private val clicked = Channel<Push>(MAX_CLICKS, BufferOverflow.DROP_OLDEST)

    /** The device's events, to every collector. */
    public val events: SharedFlow<DeviceEvent> = told.asSharedFlow()

    public val isConnected: StateFlow<Boolean> = connected.asStateFlow()

    /** The pushes on whose notifications the user has clicked, each to one collector. They wait until there is one. */
    public val clicks: Flow<Push> = clicked.receiveAsFlow()

    /**
     * Handles a push that is for the app alone. It is saved as handled, and acknowledged, when this returns. One on which it
     * throws, or that takes over 30 s, is sent again later.
     */
    public abstract suspend fun handle(push: Push)

    final override fun onMessage(push: Push, done: Done) {
        scope.launch {
            try {
                handle(push)
            } catch (error: Throwable) {
                done.failed(error)
                if (error !is Exception) throw error
                return@launch
            }
            done.handled()
        }
    }

    override fun onClick(push: Push): Boolean {
        clicked.trySend(push)
        return false
    }

    override fun onEvent(event: DeviceEvent) {
        connected.value = when (event) {
            is DeviceEvent.Welcome -> true
            is DeviceEvent.Error -> connected.value
            else -> false
        }
        told.tryEmit(event)
    }
}
