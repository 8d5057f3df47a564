// Prove who is on a device: java prove_alias.java PRIVATE.pem APPKEY ALIAS [TOKEN]
import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Instant;
import java.util.Base64;

class ProveAlias {
    static PrivateKey privateKey(String pem) throws Exception {
        byte[] der = Base64.getMimeDecoder().decode(pem.replaceAll("-----[A-Z ]+-----", ""));
        return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(der));
    }

    /** Returns a proof for the user who has logged in. Call it only with the alias of this user. `token` may be null. */
    static String prove(PrivateKey key, String appkey, String alias, String token, int seconds) throws Exception {
        long now = Instant.now().getEpochSecond();
        String claims = String.format("{\"sub\":%s,\"aud\":%s,\"iat\":%d,\"exp\":%d%s}", quoted(alias), quoted(appkey),
            now, now + seconds, token == null ? "" : ",\"token\":" + quoted(token));
        String text = encoded("{\"alg\":\"ES256\"}".getBytes(UTF_8)) + "." + encoded(claims.getBytes(UTF_8));
        Signature signature = Signature.getInstance("SHA256withECDSAinP1363Format");
        signature.initSign(key);
        signature.update(text.getBytes(UTF_8));
        return text + "." + encoded(signature.sign());
    }

    static String encoded(byte[] part) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(part);
    }

    static String quoted(String text) {
        var quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') quoted.append('\\').append(c);
            else if (c < ' ') quoted.append(String.format("\\u%04x", (int) c));
            else quoted.append(c);
        }
        return quoted.append('"').toString();
    }

    public static void main(String[] args) throws Exception {
        PrivateKey key = privateKey(Files.readString(Path.of(args[0])));
        System.out.println(prove(key, args[1], args[2], args.length > 3 ? args[3] : null, 3600));
    }
}
