// Prove who is on a device: go run prove_alias.go PRIVATE.pem APPKEY ALIAS [TOKEN]
package main

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

func encoded(part []byte) string { return base64.RawURLEncoding.EncodeToString(part) }

func privateKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key in PEM form")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("no EC key")
	}
	return key, nil
}

// prove returns a proof for the user who has logged in. Call it only with the alias of this user.
func prove(key *ecdsa.PrivateKey, appkey, alias, token string) (string, error) {
	now := time.Now().Unix()
	claims := map[string]any{"sub": alias, "aud": appkey, "iat": now, "exp": now + 3600}
	if token != "" {
		claims["token"] = token
	}
	said, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	text := encoded([]byte(`{"alg":"ES256"}`)) + "." + encoded(said)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + encoded(signature), nil
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	key, err := privateKey(text)
	if err != nil {
		panic(err)
	}
	token := ""
	if len(os.Args) > 4 {
		token = os.Args[4]
	}
	proof, err := prove(key, os.Args[2], os.Args[3], token)
	if err != nil {
		panic(err)
	}
	fmt.Println(proof)
}
