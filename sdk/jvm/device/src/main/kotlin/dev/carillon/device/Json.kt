package dev.carillon.device

private const val MAX_DEPTH = 100

/** A text that is no JSON (RFC 8259). */
internal class JsonException(message: String) : Exception(message)

/**
 * Returns the value of a JSON text: null, Boolean, String, Long (an integer of up to 64 bits), Double, List or Map.
 * Nothing beyond RFC 8259 is accepted; of two members with one name, the last counts.
 */
internal fun parseJson(text: String): Any? = JsonParser(text).document()

internal fun writeJson(value: Any?): String = StringBuilder().also { append(it, value) }.toString()

private class JsonParser(private val text: String) {
    private var at = 0

    fun document(): Any? {
        val found = value(0)
        skipSpace()
        if (at < text.length) fail("text after the value")
        return found
    }

    private fun value(depth: Int): Any? {
        if (depth > MAX_DEPTH) fail("more than $MAX_DEPTH levels")
        skipSpace()
        return when (val char = peek()) {
            '{' -> objectAt(depth)
            '[' -> array(depth)
            '"' -> string()
            't' -> word("true", true)
            'f' -> word("false", false)
            'n' -> word("null", null)
            else -> if (char == '-' || char in '0'..'9') number() else fail("no value")
        }
    }

    private fun objectAt(depth: Int): Map<String, Any?> {
        val members = LinkedHashMap<String, Any?>()
        at++
        skipSpace()
        if (peek() == '}') return members.also { at++ }
        while (true) {
            skipSpace()
            if (peek() != '"') fail("no name")
            val name = string()
            skipSpace()
            expect(':')
            members[name] = value(depth + 1)
            if (endsAfterComma('}')) return members
        }
    }

    private fun array(depth: Int): List<Any?> {
        val items = ArrayList<Any?>()
        at++
        skipSpace()
        if (peek() == ']') return items.also { at++ }
        while (true) {
            items.add(value(depth + 1))
            if (endsAfterComma(']')) return items
        }
    }

    /** Reads a comma or the end of an object or array; returns whether it was the end. */
    private fun endsAfterComma(end: Char): Boolean {
        skipSpace()
        val char = peek()
        if (char != ',' && char != end) fail("neither a comma nor the end")
        at++
        return char == end
    }

    private fun string(): String {
        at++
        val start = at
        while (true) {
            val char = peek()
            if (char < ' ') fail("a control character in a string")
            if (char == '"') return text.substring(start, at++)
            if (char == '\\') break
            at++
        }
        val read = StringBuilder(text.substring(start, at))
        while (true) {
            val char = peek()
            if (char < ' ') fail("a control character in a string")
            at++
            if (char == '"') return read.toString()
            read.append(if (char == '\\') escaped() else char)
        }
    }

    private fun escaped(): Char {
        val char = peek()
        at++
        return when (char) {
            '"', '\\', '/' -> char
            'b' -> '\b'
            'f' -> '\u000c'
            'n' -> '\n'
            'r' -> '\r'
            't' -> '\t'
            'u' -> unicode()
            else -> fail("an unknown escape")
        }
    }

    private fun unicode(): Char {
        var code = 0
        repeat(4) {
            val digit = when (val char = peek()) {
                in '0'..'9' -> char - '0'
                in 'a'..'f' -> char - 'a' + 10
                in 'A'..'F' -> char - 'A' + 10
                else -> fail("no hexadecimal digit")
            }
            code = code * 16 + digit
            at++
        }
        return code.toChar()
    }

    private fun number(): Number {
        val start = at
        if (peek() == '-') at++
        if (peek() == '0') at++ else digits()
        var isWhole = true
        if (peek() == '.') {
            isWhole = false
            at++
            digits()
        }
        if (peek() == 'e' || peek() == 'E') {
            isWhole = false
            at++
            if (peek() == '+' || peek() == '-') at++
            digits()
        }
        val read = text.substring(start, at)
        return (if (isWhole) read.toLongOrNull() else null) ?: read.toDouble()
    }

    private fun digits() {
        if (peek() !in '0'..'9') fail("no digit")
        while (peek() in '0'..'9') at++
    }

    private fun <T> word(word: String, value: T): T {
        if (!text.startsWith(word, at)) fail("no value")
        at += word.length
        return value
    }

    private fun expect(char: Char) {
        if (peek() != char) fail("no '$char'")
        at++
    }

    private fun skipSpace() {
        while (at < text.length && text[at] in " \t\r\n") at++
    }

    /** The next character; NUL, which nothing accepts, at the end of the text. */
    private fun peek(): Char = if (at < text.length) text[at] else '\u0000'

    private fun fail(what: String): Nothing = throw JsonException("no JSON: $what at character $at")
}

private fun append(to: StringBuilder, value: Any?) {
    when (value) {
        null -> to.append("null")
        is Boolean, is Int, is Long -> to.append(value)
        is Double -> to.append(if (value.isNaN() || value.isInfinite()) throw JsonException("$value is no JSON") else value)
        is String -> appendString(to, value)
        is Map<*, *> -> appendAll(to, '{', value.entries, '}') { (name, member) ->
            appendString(to, name as String)
            to.append(':')
            append(to, member)
        }
        is Iterable<*> -> appendAll(to, '[', value, ']') { append(to, it) }
        else -> throw JsonException("a value of ${value.javaClass} is no JSON")
    }
}

private fun <T> appendAll(to: StringBuilder, start: Char, items: Iterable<T>, end: Char, item: (T) -> Unit) {
    to.append(start)
    for ((index, each) in items.withIndex()) {
        if (index > 0) to.append(',')
        item(each)
    }
    to.append(end)
}

/** Appends a string; a half of a surrogate pair is escaped, because UTF-8 cannot hold it. */
private fun appendString(to: StringBuilder, text: String) {
    to.append('"')
    for ((index, char) in text.withIndex()) {
        val isPaired = when {
            char.isHighSurrogate() -> index + 1 < text.length && text[index + 1].isLowSurrogate()
            char.isLowSurrogate() -> index > 0 && text[index - 1].isHighSurrogate()
            else -> true
        }
        when {
            char == '"' || char == '\\' -> to.append('\\').append(char)
            char < ' ' || !isPaired -> to.append("\\u").append(char.code.toString(16).padStart(4, '0'))
            else -> to.append(char)
        }
    }
    to.append('"')
}
