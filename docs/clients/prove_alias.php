<?php
// Prove who is on a device: php prove_alias.php PRIVATE.pem APPKEY ALIAS [TOKEN] (needs the extension openssl)

function encoded(string $part): string {
    return rtrim(strtr(base64_encode($part), '+/', '-_'), '=');
}

// OpenSSL writes the two numbers of the signature in DER; a JWT has each in 32 bytes.
function fixed(string $der): string {
    $first = ord($der[3]);
    $numbers = [substr($der, 4, $first), substr($der, 6 + $first)];
    $padded = fn ($number) => str_pad(ltrim($number, "\0"), 32, "\0", STR_PAD_LEFT);
    return implode('', array_map($padded, $numbers));
}

// Returns a proof for the user who has logged in. Call it only with the alias of this user.
function prove(string $pem, string $appkey, string $alias, ?string $token = null, int $seconds = 3600): string {
    $claims = ['sub' => $alias, 'aud' => $appkey, 'iat' => time(), 'exp' => time() + $seconds];
    if ($token !== null) {
        $claims['token'] = $token;
    }
    $text = encoded('{"alg":"ES256"}') . '.' . encoded(json_encode($claims, JSON_THROW_ON_ERROR));
    if (!openssl_sign($text, $der, $pem, OPENSSL_ALGO_SHA256)) {
        throw new RuntimeException('the key cannot sign: ' . openssl_error_string());
    }
    return $text . '.' . encoded(fixed($der));
}

echo prove(file_get_contents($argv[1]), $argv[2], $argv[3], $argv[4] ?? null), "\n";
