package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/limitsfile"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// behindNginx runs nginx with nginx.conf. The server sees the address of the
// client, whatever field the client sends.
func behindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	server := start(t, "-file", newFile(t), "-limits", limitsFile(t, 1), "-trust", "127.0.0.0/8")
	address, dir := subprocess.FreeAddress(t), t.TempDir()
	conf := read(t, "nginx.conf")
	var pairs []string
	for old, replacement := range map[string]string{
		"listen 80;":            "listen " + address + ";",
		"http://127.0.0.1:8080": server.url,
		"events {}":             "daemon off; pid " + dir + "/pid; error_log stderr; events {}",
		"http {":                "http { access_log off;" + tempPaths(dir),
	} {
		require.Equal(t, 1, strings.Count(conf, old), old)
		pairs = append(pairs, old, replacement)
	}
	conf = strings.NewReplacer(pairs...).Replace(conf) // all at once, because a new address may begin as an old one
	path := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(path, []byte(conf), 0o600))
	cmd := exec.Command(nginx, "-p", dir, "-c", path)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	})
	through := &program{url: "http://" + address}
	for { // until nginx listens
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
	}
	require.Equal(t, 200, through.get(t, "/api/time", "X-Forwarded-For", "192.0.2.1").StatusCode)
	require.Equal(t, 429, through.get(t, "/api/time", "X-Forwarded-For", "192.0.2.2").StatusCode)
}

// tempPaths makes nginx keep bodies below dir, for tests that run without root.
func tempPaths(dir string) (directives string) {
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		directives += " " + kind + "_temp_path " + dir + "/" + kind + ";"
	}
	return directives
}

// alertsNameMetrics reads the rules for Prometheus. The status page has each
// metric that they name.
func alertsNameMetrics(t *testing.T) {
	server := start(t, "-file", newFile(t))
	metrics := server.metrics(t)
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "alerts.yml")), &rules))
	require.NotEmpty(t, rules.Groups)
	for _, rule := range rules.Groups[0].Rules {
		require.NotEmpty(t, rule.Alert)
		named := regexp.MustCompile(`stint_\w+(\{[^}]*\})?`).FindAllString(strings.ReplaceAll(rule.Expr, "by (stint_limit)", ""), -1)
		require.NotEmpty(t, named, rule.Alert)
		for _, metric := range named {
			name, labels, _ := strings.Cut(strings.TrimSuffix(metric, "}"), "{")
			labels = strings.Trim(strings.Replace(labels, `stint_shadow=""`, "", 1), ",") // a series without the label
			require.Regexp(t, `(?m)^`+name+`(\{.*`+labels+`.*\})? `, metrics, rule.Alert)
		}
	}
}

// deployedArguments starts the server with the flags of the unit, and checks
// that the unit, the Dockerfile and the compose file use the same names.
func deployedArguments(t *testing.T) {
	unit, dockerfile := read(t, "stint-server.service"), read(t, "Dockerfile")
	line := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, line)
	wd, err := os.Getwd()
	require.NoError(t, err)
	args := strings.Fields(strings.ReplaceAll(line[1], "/etc/stint-server", wd))
	for i, arg := range args {
		if arg == "limits.db" {
			args[i] = newFile(t)
		}
	}
	server := start(t, args...)
	require.Equal(t, 200, server.get(t, "/api/time").StatusCode)
	require.Contains(t, unit, "WorkingDirectory=/var/lib/stint-server\n", "of StateDirectory")
	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		local := strings.Replace(unit, "/usr/local/bin/stint-server", os.Args[0], 1)
		path := filepath.Join(t.TempDir(), "stint-server.service")
		require.NoError(t, os.WriteFile(path, []byte(local), 0o600))
		out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), "stint-server.service:")
	}

	var compose struct {
		Services map[string]struct {
			Build struct{ Context, Dockerfile string }
			Grace string `yaml:"stop_grace_period"`
			Ports,
			Volumes []string
		}
		Volumes map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "compose.yaml")), &compose))
	service := compose.Services["server"]
	require.FileExists(t, filepath.Join(service.Build.Context, service.Build.Dockerfile))
	require.Equal(t, []string{"limits:/data"}, service.Volumes)
	require.Contains(t, compose.Volumes, "limits")
	require.Contains(t, dockerfile, "VOLUME /data\n")
	require.Contains(t, dockerfile, `"-file", "/data/limits.db"`)
	require.Contains(t, dockerfile, "go build -o /stint-server ./examples/server ")
	require.Contains(t, unit, "TimeoutStopSec="+strings.TrimSuffix(service.Grace, "s")+"\n")
	require.Equal(t, []string{"127.0.0.1:8080:8080"}, service.Ports, "the status page has no port")
}

// operatorCommands runs the commands in docs/production.md while the server
// runs, and again after kill -9.
func operatorCommands(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no sh")
	}
	bin, dir := t.TempDir(), t.TempDir()
	command := filepath.Join(t.TempDir(), "stint")
	// go keeps the programs that it runs, so the next test run need not link this one.
	out, err := exec.Command("go", "run", "-exec", "cp", "../../cmd/stint", command).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, subprocess.Install(filepath.Join(bin, "stint"), command))
	server := start(t, "-file", filepath.Join(dir, "limits.db"))
	require.Equal(t, 200, server.get(t, "/api/time").StatusCode)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "limits.yml"), defaultLimits, 0o600))

	doc := read(t, "../../docs/production.md")
	_, block, found := strings.Cut(doc, "<!-- run by: TestServer -->\n```sh\n")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	run := func(asked bool) {
		answers := fmt.Sprintf("stint: limits.db is open in process %d, which answers\n", server.Cmd.Process.Pid)
		for line := range strings.Lines(block) {
			require.True(t, strings.HasPrefix(line, "stint "), line)
			if strings.HasPrefix(line, "stint verify") && subprocess.Emulated() {
				t.Logf("not run: %s starts itself, without the emulator", strings.TrimSpace(line))
				continue
			}
			line = strings.Replace(line, "--db", "--verbose --db", 1)
			cmd := exec.Command("sh", "-c", line)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s%s", line, out)
			require.Equal(t, asked && strings.Contains(line, "--db"), strings.Contains(string(out), answers), "%s%s", line, out)
			if strings.Contains(line, "show") {
				require.Contains(t, string(out), "every request is denied for", line)
			}
		}
		require.NoError(t, os.Remove(filepath.Join(dir, "monday.db")))
	}
	run(true)
	require.NoError(t, server.Cmd.Process.Kill())
	require.Error(t, server.Cmd.Wait())
	run(false)
}

// The limits of the program are those of its files.
func TestLimits(t *testing.T) {
	limits, err := limitsfile.Load(names, "limits.yml", "plans.yml")
	require.NoError(t, err)
	require.EqualValues(t, 600, limits.For(RequestsPerAccount.Key("ada")).Count)
}
