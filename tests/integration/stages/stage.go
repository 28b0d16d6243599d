// `examples/stage_nats.py` in Go, by the text protocol of NATS alone: it shows what a stage needs, which is a socket and
// JSON. A stage of your own is shorter with a client of NATS.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
)

const name, promptTokens, outputTokens = "size-limit", 1000, 8

func answered(journey map[string]any) map[string]any {
	tokens := journey["request"].(map[string]any)["prompt_tokens"].(float64)
	if tokens > promptTokens {
		return map[string]any{
			"kind": "rejection", "request_id": journey["request_id"], "stage": name,
			"status": 400, "type": "invalid_request_error", "code": "prompt_too_long",
			"message": fmt.Sprintf("The prompt has about %v tokens; send %v at most.", tokens, promptTokens),
		}
	}
	host, _ := os.Hostname()
	edit := map[string]any{"field": "max_tokens", "value": outputTokens}
	report := map[string]any{"stage": name, "instance": host, "note": fmt.Sprintf("at most %v tokens", outputTokens)}
	journey["body"] = append(journey["body"].([]any), edit)
	journey["trail"] = append(journey["trail"].([]any), report)
	return journey
}

func check(problem error) {
	if problem != nil {
		panic(problem)
	}
}

func main() {
	server, problem := url.Parse(os.Getenv("POINTSMAN_NATS_URL"))
	check(problem)
	connection, problem := net.Dial("tcp", server.Host)
	check(problem)
	login := map[string]any{"verbose": false}
	if server.User != nil {
		login["user"] = server.User.Username()
		login["pass"], _ = server.User.Password()
	}
	options, _ := json.Marshal(login)
	fmt.Fprintf(connection, "CONNECT %s\r\nSUB pm.rpc.request.%s.v1 %s 1\r\n", options, name, name)
	for lines := bufio.NewReader(connection); ; {
		line, problem := lines.ReadString('\n')
		check(problem)
		words := strings.Fields(line)
		switch words[0] {
		case "PING":
			fmt.Fprint(connection, "PONG\r\n")
		case "MSG":
			size, problem := strconv.Atoi(words[len(words)-1])
			check(problem)
			message := make([]byte, size+2)
			_, problem = io.ReadFull(lines, message)
			check(problem)
			var journey map[string]any
			check(json.Unmarshal(message, &journey))
			answer, problem := json.Marshal(answered(journey))
			check(problem)
			fmt.Fprintf(connection, "PUB %s %d\r\n%s\r\n", words[3], len(answer), answer)
		}
	}
}
