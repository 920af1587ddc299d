package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// fake is an API that answers with the words of a counting rhyme. A word is a
// token.
func fake(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Messages []struct {
			Content string `json:"content"`
		} `json:"messages"`
		MaxTokens int64 `json:"max_tokens"`
		Stream    bool  `json:"stream"`
		Options   struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	prompt := 0
	for _, m := range req.Messages {
		prompt += len(strings.Fields(m.Content))
	}
	words := strings.Fields("one two three four five once I caught a fish alive")
	words = words[:min(int64(len(words)), req.MaxTokens)]
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		prompt, len(words), prompt+len(words))
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%q}}],"usage":%s}`+"\n",
			strings.Join(words, " "), usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, word := range words {
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", word+" ")
		http.NewResponseController(w).Flush()
	}
	if req.Options.Usage {
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\n", usage)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
