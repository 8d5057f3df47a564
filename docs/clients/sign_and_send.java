// Sign a request and send it: java sign_and_send.java URL APPKEY SECRET
import static java.nio.charset.StandardCharsets.UTF_8;

import java.math.BigInteger;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

class SignAndSend {
    /** Maps, lists, strings, numbers, booleans, null. A number is written as its toString says: take BigDecimal. */
    static String canonical(Object value) {
        if (value instanceof Map<?, ?> map)
            return map.keySet().stream()
                .map(key -> (String) key)
                // String.compareTo sorts by UTF-16 units; the order of UTF-8 bytes is that of code points.
                .sorted((a, b) -> Arrays.compareUnsigned(a.getBytes(UTF_8), b.getBytes(UTF_8)))
                .map(key -> canonical(key) + ":" + canonical(map.get(key)))
                .collect(Collectors.joining(",", "{", "}"));
        if (value instanceof List<?> list)
            return list.stream().map(SignAndSend::canonical).collect(Collectors.joining(",", "[", "]"));
        return value instanceof String text ? quoted(text) : String.valueOf(value);
    }

    static String quoted(String text) {
        var quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            int escape = "\"\\\b\f\n\r\t".indexOf(c);
            if (escape >= 0) quoted.append('\\').append("\"\\bfnrt".charAt(escape));
            else if (c < ' ') quoted.append(String.format("\\u%04x", (int) c));
            else quoted.append(c);
        }
        return quoted.append('"').toString();
    }

    static String send(String method, String url, Map<String, ?> body, String... secrets) throws Exception {
        String text = canonical(body);
        byte[] md5 = MessageDigest.getInstance("MD5").digest((text + String.join("", secrets)).getBytes(UTF_8));
        String signed = String.format("{\"sign\":\"%032x\",", new BigInteger(1, md5)) + text.substring(1);
        var request = HttpRequest.newBuilder(URI.create(url))
            .header("Content-Type", "application/json")
            .method(method, HttpRequest.BodyPublishers.ofString(signed))
            .build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    }

    public static void main(String[] args) throws Exception {
        var push = Map.of(
            "sendTo", Map.of("appkey", Map.of("android", args[1]), "userScope", 1),
            "msgStyle", Map.of("basic", Map.of("content", "Hello", "is_notif", 1)));
        System.out.println(send("POST", args[0], push, args[2]));
    }
}
