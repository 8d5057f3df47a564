import java.math.BigDecimal;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Sends what the other clients read from standard input; Java itself reads no JSON. */
class Awkward {
    public static void main(String[] args) throws Exception {
        var ignored = new LinkedHashMap<String, Object>();
        ignored.put("\uD83D\uDE00", 3);
        ignored.put("\uFF5E", 2);
        ignored.put("\u043A\u043B\u044E\u0447", 1);
        ignored.put("", null);
        ignored.put("</b>&", "<b>&amp;");
        ignored.put("a", List.of(new BigDecimal("1.10"), new BigDecimal("1e3"), new BigDecimal("-0.0"), 7L, 0.1, true));
        ignored.put("deep", List.of(List.of(Map.of("z", Map.of("\u00E9", 1, "e", 2)), List.of()), Map.of()));
        ignored.put("nothing", Arrays.asList((Object) null));
        var push = Map.of(
            "sendTo", Map.of("appkey", Map.of("android", args[1]), "userScope", 1),
            "msgStyle", Map.of("basic", Map.of("content", args[3], "is_notif", 1)),
            "ignored", ignored);
        System.out.println(SignAndSend.send("POST", args[0], push, args[2]));
    }
}
