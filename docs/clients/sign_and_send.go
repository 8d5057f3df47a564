// Sign a request and send it: go run sign_and_send.go URL SECRET... < request.json
package main

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
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
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
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
