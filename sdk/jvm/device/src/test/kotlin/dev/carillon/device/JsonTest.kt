package dev.carillon.device

import java.util.Random
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Test

class JsonTest {
    @Test
    fun `values of RFC 8259 are read`() {
        val read = mapOf(
            "null" to null, " true " to true, "false" to false, "0" to 0L, "-0" to 0L, "12" to 12L, "-7" to -7L,
            "9223372036854775807" to Long.MAX_VALUE, "9223372036854775808" to 9.223372036854775807E18,
            "1.5" to 1.5, "1e2" to 100.0, "-1E-2" to -0.01, "1.0" to 1.0,
            "\"\"" to "", "\"a\\n\\t\\r\\b\\f\\/\\\\\\\"\\u00e9\\uD83D\\ude00\"" to "a\n\t\r\b\u000c/\\\"é😀", "\"é😀\"" to "é😀",
            "\"\\u0000\"" to "\u0000", "\u0020[\t1\n,\r2]" to listOf(1L, 2L), "[]" to emptyList<Any>(), "{}" to emptyMap<String, Any>(),
            "{\"a\":{\"b\":[null]},\"a\":1}" to mapOf("a" to 1L),
        )
        for ((text, value) in read) assertEquals(text, value, parseJson(text))
    }

    @Test
    fun `nothing else is`() {
        val refused = listOf(
            "", " ", "nul", "nulll", "True", "NaN", "Infinity", "-", "+1", "01", "-01", ".5", "1.", "1.e2", "1e", "1e+", "0x1", "1_000", "١",
            "\"", "\"\n\"", "\"\u0000\"", "\"\\x\"", "\"\\u12g4\"", "\"\\u12\"", "'a'", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "]",
            "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{a:1}", "{1:1}", "{\"a\" 1}", "{\"a\":1}}", "1 1", "// a\n1", "\u00a01", "\ufeff1",
        )
        for (text in refused) assertThrows(text, JsonException::class.java) { parseJson(text) }
    }

    @Test
    fun `levels are bounded, so that no text exhausts the stack`() {
        assertEquals("[".repeat(101), 101, "[".repeat(101).length)
        parseJson("[".repeat(100) + "1" + "]".repeat(100))
        assertThrows(JsonException::class.java) { parseJson("[".repeat(101) + "1" + "]".repeat(101)) }
        assertThrows(JsonException::class.java) { parseJson("{\"a\":".repeat(1_000_000)) }
    }

    @Test
    fun `what is written is read again`() {
        for (seed in 0L until 2_000) {
            val value = value(Random(seed), 4)
            assertEquals("seed $seed", value, parseJson(writeJson(value)))
        }
    }

    @Test
    fun `half a surrogate pair is written as an escape, which UTF-8 can hold`() {
        assertEquals("\"a\\ud83db\\ude00\"", writeJson("a\ud83db\ude00"))
        assertEquals("\"😀\"", writeJson("😀"))
    }

    @Test
    fun `what JSON has no form for is not written`() {
        for (value in listOf(Double.NaN, Double.POSITIVE_INFINITY, Any(), mapOf("a" to 'c'))) {
            assertThrows(JsonException::class.java) { writeJson(value) }
        }
    }

    @Test
    fun `a damaged text is refused or read, and nothing else happens`() {
        for (seed in 0L until 20_000) {
            val random = Random(seed)
            val text = StringBuilder(writeJson(value(random, 4)))
            repeat(1 + random.nextInt(3)) {
                val at = random.nextInt(text.length + 1)
                when (random.nextInt(3)) {
                    0 -> text.insert(at, "{}[],:\"\\0-.eu\u0000\u00e9 "[random.nextInt(16)])
                    1 -> text.delete(minOf(at, text.length - 1).coerceAtLeast(0), minOf(at + 1, text.length))
                    else -> text.setLength(at)
                }
                if (text.isEmpty()) text.append('0')
            }
            try {
                val read = parseJson(text.toString())
                assertEquals("seed $seed", read, parseJson(writeJson(read)))
            } catch (_: JsonException) {
                continue
            }
        }
    }

    private fun value(random: Random, depth: Int): Any? = when (random.nextInt(if (depth == 0) 5 else 7)) {
        0 -> null
        1 -> random.nextBoolean()
        2 -> random.nextLong() shr random.nextInt(64)
        3 -> random.nextGaussian() * 1e10
        4 -> text(random)
        5 -> List(random.nextInt(4)) { value(random, depth - 1) }
        else -> (0 until random.nextInt(4)).associate { text(random) to value(random, depth - 1) }
    }

    private fun text(random: Random): String =
        (0 until random.nextInt(6)).map { (random.nextInt(0x10000) shr random.nextInt(14)).toChar() }.joinToString("")
}
