package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nginx runs the block in docs/serve.md, where the machine has it with Lua and a
// Redis client for it. Debian calls the client nginx.redis.
func TestServeNginx(t *testing.T) {
	const modules = "/usr/lib/nginx/modules/"
	for _, file := range []string{modules + "ngx_http_lua_module.so", "/usr/share/lua/5.1/nginx/redis.lua"} {
		if _, err := os.Stat(file); err != nil {
			t.Skip(err)
		}
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip(err)
	}
	block, err := os.ReadFile("testdata/serve/throttle.conf")
	require.NoError(t, err)
	s := startServe(t, 1, nil, "--db", serveDB(t))
	lua := strings.NewReplacer("resty.redis", "nginx.redis", "/run/stint/resp.sock", s.at[0]).Replace(string(block))
	dir := t.TempDir()
	socket := filepath.Join(dir, "http")
	config := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
load_module %[1]sndk_http_module.so;
load_module %[1]sngx_http_lua_module.so;
daemon off; master_process off; pid %[2]s/pid; error_log stderr;
events {}
http {
    access_log off; client_body_temp_path %[2]s/b; proxy_temp_path %[2]s/p; fastcgi_temp_path %[2]s/f;
    uwsgi_temp_path %[2]s/u; scgi_temp_path %[2]s/s;
    server {
        listen unix:%[3]s;
        location / { %[4]s content_by_lua_block { ngx.say("hello") } }
    }
}`, modules, dir, socket, lua)), 0o600))
	cmd := exec.Command(nginx, "-p", dir, "-c", config)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	eventually(t, func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	for i := range 101 {
		response, err := client.Get("http://localhost/")
		require.NoError(t, err, stderr.String())
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		if response.StatusCode == http.StatusTooManyRequests {
			require.Equal(t, 100, i, "%s", body)
			require.Regexp(t, `^8\d\d$`, response.Header.Get("Retry-After"))
			return
		}
		require.Equal(t, "hello\n", string(body))
	}
	t.Fatal("never denied")
}
