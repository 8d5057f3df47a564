import static java.nio.charset.StandardCharsets.UTF_8;

import java.math.BigInteger;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.MessageDigest;

class Push {
    public static void main(String[] args) throws Exception {
        String secret = System.getenv("CARILLON_SECRET"); // @SECRET@
        // The request as compact JSON with its keys in order: what is signed.
        String text = "@TEXT@";
        byte[] md5 = MessageDigest.getInstance("MD5").digest((text + secret).getBytes(UTF_8));
        String body = String.format("{\"sign\":\"%032x\",", new BigInteger(1, md5)) + text.substring(1);
        var request = HttpRequest.newBuilder(URI.create("@URL@"))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
