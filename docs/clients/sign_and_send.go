// Sign a request and send it: go run sign_and_send.go URL SECRET... < request.json
package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Maps are written with their keys in order; what else Go escapes must stand as it is.
var asItIs = strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029", `\u0008`, `\b`, `\u000c`, `\f`)

func send(method, url string, body map[string]any, secrets ...string) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		return nil, err
	}
	canonical := asItIs.Replace(strings.TrimSuffix(text.String(), "\n"))
	sign := md5.Sum([]byte(canonical + strings.Join(secrets, "")))
	signed := fmt.Sprintf(`{"sign":"%x",%s`, sign, canonical[1:])
	request, err := http.NewRequest(method, url, strings.NewReader(signed))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	makeReplaySafe(request, signed, strings.Join(secrets, ""))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// makeReplaySafe adds the headers by which nobody can send the request again.
func makeReplaySafe(request *http.Request, body, secret string) {
	random := make([]byte, 16)
	rand.Read(random)
	now, nonce := fmt.Sprint(time.Now().Unix()), fmt.Sprintf("%x", random)
	bodyHash := fmt.Sprintf("%x", sha256.Sum256([]byte(body)))
	signature := hmac.New(sha256.New, []byte(secret))
	fmt.Fprint(signature, strings.Join([]string{request.Method, request.URL.Path, now, nonce, bodyHash}, "\n"))
	request.Header.Set("Carillon-Time", now)
	request.Header.Set("Carillon-Nonce", nonce)
	request.Header.Set("Carillon-Signature", fmt.Sprintf("%x", signature.Sum(nil)))
}

func main() {
	var body map[string]any
	decoder := json.NewDecoder(os.Stdin)
	decoder.UseNumber() // keeps numbers as they are written
	if err := decoder.Decode(&body); err != nil {
		panic(err)
	}
	answer, err := send("POST", os.Args[1], body, os.Args[2:]...)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(answer))
}
