// Asks whether a consumer may make a request: go run check.go CONSUMER
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

// check returns whether the consumer may make the request. It allows the request if the server does
// not answer.
func check(consumer string) bool {
	server := os.Getenv("RL_SERVER")
	if server == "" {
		server = "http://127.0.0.1:8080"
	}
	body, _ := json.Marshal(map[string]any{
		"request": map[string]string{"method": "GET", "path": "/export", "consumer": consumer},
	})
	request, err := http.NewRequest(http.MethodPost, server+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return true
	}
	request.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("RL_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: time.Second}
	response, err := client.Do(request)
	if err != nil {
		return true
	}
	defer response.Body.Close()
	return response.StatusCode != http.StatusTooManyRequests
}

func main() {
	if check(os.Args[1]) {
		fmt.Println("allowed")
		return
	}
	fmt.Println("denied")
	os.Exit(1)
}
