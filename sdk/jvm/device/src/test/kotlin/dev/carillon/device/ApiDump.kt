package dev.carillon.device

import java.util.jar.JarFile
import kotlinx.validation.api.dump
import kotlinx.validation.api.filterOutNonPublic
import kotlinx.validation.api.loadApiFromJvmClasses

/** Prints the public API of a jar, what Kotlin code and Java code may use of it, in an order that never changes. */
internal fun main(arguments: Array<String>) {
    JarFile(arguments.single()).use { it.loadApiFromJvmClasses().filterOutNonPublic().dump(System.out) }
}
