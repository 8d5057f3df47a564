// Sign a request and send it: java sign_and_send.java URL APPKEY SECRET
import static java.nio.charset.StandardCharsets.UTF_8;

import java.math.BigInteger;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

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
            .headers(replaySafe(method, url, signed, String.join("", secrets)))
            .method(method, HttpRequest.BodyPublishers.ofString(signed))
            .build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    }

    /** The headers by which nobody can send the request again. */
    static String[] replaySafe(String method, String url, String body, String secret) throws Exception {
        String time = String.valueOf(System.currentTimeMillis() / 1000), nonce = UUID.randomUUID().toString();
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(body.getBytes(UTF_8));
        var lines = List.of(method, URI.create(url).getPath(), time, nonce, HexFormat.of().formatHex(hash));
        var mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(secret.getBytes(UTF_8), "HmacSHA256"));
        String signature = HexFormat.of().formatHex(mac.doFinal(String.join("\n", lines).getBytes(UTF_8)));
        return new String[] {
            "Carillon-Time", time, "Carillon-Nonce", nonce, "Carillon-Signature", signature};
    }

    public static void main(String[] args) throws Exception {
        var push = Map.of(
            "sendTo", Map.of("appkey", Map.of("android", args[1]), "userScope", 1),
            "msgStyle", Map.of("basic", Map.of("content", "Hello", "is_notif", 1)));
        System.out.println(send("POST", args[0], push, args[2]));
    }
}
