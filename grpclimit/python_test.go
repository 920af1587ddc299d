package grpclimit_test

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A client in Python understands a denial of the program in the README.
func TestPython(t *testing.T) {
	python := ""
	for _, name := range []string{"python3", "/usr/bin/python3"} { // the second is Debian's, with python3-grpcio
		if exec.Command(name, "-c", "import grpc").Run() == nil {
			python = name
			break
		}
	}
	if python == "" {
		t.Skip("no python3 with grpc")
	}
	script, err := filepath.Abs("testdata/client.py")
	require.NoError(t, err)
	dir := t.TempDir()
	program := filepath.Join(dir, "example")
	out, err := exec.Command("go", "build", "-o", program, "./example").CombinedOutput()
	require.NoError(t, err, string(out))
	server := exec.Command(program, "127.0.0.1:0")
	server.Dir = dir
	log, err := server.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	defer func() {
		server.Process.Signal(os.Interrupt)
		server.Wait()
	}()
	line, err := bufio.NewReader(log).ReadString('\n')
	require.NoError(t, err)
	_, addr, found := strings.Cut(strings.TrimSpace(line), "listening on ")
	require.True(t, found, line)

	lines, err := exec.Command(python, script, addr).Output()
	require.NoError(t, err)
	type answer struct {
		Code, Message string
		Trailer       map[string]string
		Header        []string
	}
	var answers []answer
	for text := range strings.Lines(string(lines)) {
		var a answer
		require.NoError(t, json.Unmarshal([]byte(text), &a), text)
		answers = append(answers, a)
	}
	require.Len(t, answers, 4)
	for _, a := range answers[:3] {
		assert.Equal(t, "OK", a.Code)
	}
	denied := answers[3]
	assert.Equal(t, "RESOURCE_EXHAUSTED", denied.Code)
	assert.Equal(t, "rate limit exceeded: calls", denied.Message)
	assert.Empty(t, denied.Header)
	ms, err := strconv.Atoi(denied.Trailer[pushback])
	require.NoError(t, err)
	raw, err := hex.DecodeString(denied.Trailer["grpc-status-details-bin"])
	require.NoError(t, err)
	var details spb.Status
	require.NoError(t, proto.Unmarshal(raw, &details))
	retry, quota, _ := detailsOf(t, status.ErrorProto(&details))
	assert.InDelta(t, ms, retry.GetRetryDelay().AsDuration()/time.Millisecond, 1)
	assert.Equal(t, "calls", quota.GetViolations()[0].GetSubject())
}
