// Asks whether a consumer may make a request: go run check.go CONSUMER
//
// Prints allowed or denied. It fails if it is not configured correctly.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

var errWrongToken = errors.New("RL_TOKEN: the server expects another token")

// check returns whether the consumer may make the request. It allows the request if the server does
// not answer.
func check(consumer string) (bool, error) {
	server := os.Getenv("RL_SERVER")
	if server == "" {
		server = "http://127.0.0.1:8080"
	}
	body, err := json.Marshal(map[string]any{
		"request": map[string]string{"method": "GET", "path": "/export", "consumer": consumer},
	})
	if err != nil {
		return false, err
	}
	request, err := http.NewRequest(http.MethodPost, server+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("RL_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: time.Second}
	response, err := client.Do(request)
	if err != nil {
		return true, nil
	}
	defer response.Body.Close()
	switch status := response.StatusCode; {
	case status == http.StatusUnauthorized:
		return false, errWrongToken
	case status == http.StatusServiceUnavailable: // not decided, and on_store_failure is reject
		return false, nil
	default:
		return status == http.StatusOK || status >= 500, nil
	}
}

func main() {
	allowed, err := check(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if !allowed {
		fmt.Println("denied")
		os.Exit(1)
	}
	fmt.Println("allowed")
}
