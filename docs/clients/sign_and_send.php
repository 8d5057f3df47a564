<?php
// Sign a request and send it: php sign_and_send.php URL SECRET... < request.json

function canonical($value): string {
    if (is_array($value) && array_is_list($value)) {
        return '[' . implode(',', array_map('canonical', $value)) . ']';
    }
    if (!is_array($value) && !is_object($value)) {
        return json_encode($value, JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_LINE_TERMINATORS
            | JSON_UNESCAPED_SLASHES | JSON_THROW_ON_ERROR);
    }
    $fields = (array) $value;
    ksort($fields, SORT_STRING);
    $field = fn ($key) => canonical((string) $key) . ':' . canonical($fields[$key]);
    return '{' . implode(',', array_map($field, array_keys($fields))) . '}';
}

function send(string $url, $body, array $secrets, string $method = 'POST') {
    $text = canonical($body);
    $signed = '{"sign":"' . md5($text . implode('', $secrets)) . '",' . substr($text, 1);
    $headers = ['Content-Type: application/json', ...replay_safe($method, $url, $signed, $secrets)];
    $http = ['method' => $method, 'header' => $headers, 'content' => $signed,
        'ignore_errors' => true]; // 403 and 429 are the HTTP status too
    return json_decode(file_get_contents($url, false, stream_context_create(['http' => $http])));
}

// The headers by which nobody can send the request again.
function replay_safe(string $method, string $url, string $body, array $secrets): array {
    [$time, $nonce] = [(string) time(), bin2hex(random_bytes(16))];
    $text = implode("\n", [$method, parse_url($url, PHP_URL_PATH), $time, $nonce, hash('sha256', $body)]);
    $signature = hash_hmac('sha256', $text, implode('', $secrets));
    return ["Carillon-Time: $time", "Carillon-Nonce: $nonce", "Carillon-Signature: $signature"];
}

$answer = send($argv[1], json_decode(stream_get_contents(STDIN)), array_slice($argv, 2));
echo json_encode($answer), "\n";
