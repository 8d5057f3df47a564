package dev.carillon.device

/** A request failed. */
public abstract class DeviceException internal constructor(message: String) : Exception(message)

/**
 * The gateway answered with an error: `code` 400 is a wrong field, 401 a wrong proof, 403 a missing one. From 500 on the
 * request may be repeated.
 */
public class RefusedException internal constructor(public val code: Int, description: String) :
    DeviceException(description)

/** There is no connection now; the device reconnects by itself. */
public class UnavailableException internal constructor(message: String) : DeviceException(message)

/** No answer came in time; the request may have been carried out all the same. */
public class DeadlineException internal constructor(message: String) : DeviceException(message)

/** The device has ended and does not reconnect; `reason` is that of `DeviceEvent.Ended`. */
public class EndedException internal constructor(public val reason: String, meaning: String) : DeviceException(meaning)
