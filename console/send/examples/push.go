package main

import (
	"crypto/md5"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	secret := os.Getenv("CARILLON_SECRET") // @SECRET@
	// The request as compact JSON with its keys in order: what is signed.
	text := "@TEXT@"
	body := fmt.Sprintf(`{"sign":"%x",%s`, md5.Sum([]byte(text+secret)), text[1:])
	response, err := http.Post("@URL@", "application/json", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(answer))
}
