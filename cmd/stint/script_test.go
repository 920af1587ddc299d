package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

// TestScripts runs the files in testdata/script. In them, "status 0 stint" runs
// the command in this process, at a tenth of the cost of "exec stint", which
// runs it in a process of its own. Each script has a home of its own.
func TestScripts(t *testing.T) {
	heedSignals()
	scripts, err := filepath.Abs("testdata/script") // runHere changes the directory
	require.NoError(t, err)
	for _, name := range homes {
		t.Setenv(name, "")
	}
	t.Setenv(runMain, "1") // verify starts another process of its own program
	testscript.Run(t, testscript.Params{
		Dir:                 scripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			for _, name := range homes {
				env.Setenv(name, env.WorkDir)
			}
			if subprocess.Emulated() {
				env.Setenv("PATH", commandDir(t)+string(os.PathListSeparator)+env.Getenv("PATH"))
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "long":
				return testlength.Long, nil
			case "emulated":
				return subprocess.Emulated(), nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":    expectStatus,
			"old":       makeOld,
			"unchanged": expectUnchanged,
			"lock":      holdLock,
			"serve":     serveFile,
			"flip":      flipByte,
			"many":      makeMany,
			"signal":    signalWhen,
			"interrupt": interruptAt,
		},
	})
}

// expectStatus runs "status N stint [ARGS...] [< FILE]" in this process, or
// "status N exec COMMAND [ARGS...]". The exit status must be N.
func expectStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N stint [ARGS...] [< FILE], or status N exec COMMAND [ARGS...]")
	}
	status := 0
	switch want := args[1]; {
	case want == "stint":
		status = runHere(ts, args[2:])
	case want == "exec" && len(args) > 2:
		err := ts.Exec(args[2], args[3:]...)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else {
			ts.Check(err)
		}
	default:
		ts.Fatalf("status: want stint or exec, not %s", want)
	}
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("exit status %d, want %s", status, args[0])
	}
}

// here is held while a script has the directory and the environment of this
// process.
var here sync.Mutex

// runHere runs the command in this process, and returns its exit status.
func runHere(ts *testscript.TestScript, args []string) int {
	stdin := ""
	if n := len(args) - 2; n >= 0 && args[n] == "<" {
		args, stdin = args[:n], ts.ReadFile(args[n+1])
	}
	here.Lock()
	defer here.Unlock()
	back, err := os.Getwd()
	ts.Check(err)
	ts.Check(os.Chdir(ts.MkAbs(".")))
	defer func() { ts.Check(os.Chdir(back)) }()
	for _, name := range homes {
		ts.Check(os.Setenv(name, ts.Getenv(name)))
	}
	return run(context.Background(), append([]string{}, args...), strings.NewReader(stdin), ts.Stdout(), ts.Stderr())
}

// longAgo is when makeOld's files were written.
var longAgo = time.Unix(1_000_000_000, 0)

// makeOld runs "old FILE". It dates the file back, and makes a copy,
// FILE.before.
func makeOld(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	content, err := os.ReadFile(path)
	ts.Check(err)
	ts.Check(os.WriteFile(path+".before", content, 0o600))
	ts.Check(os.Chtimes(path, longAgo, longAgo))
}

// expectUnchanged runs "unchanged FILE". The file must be as "old" left it.
func expectUnchanged(ts *testscript.TestScript, neg bool, args []string) {
	path := ts.MkAbs(args[0])
	before, err := os.ReadFile(path + ".before")
	ts.Check(err)
	after, err := os.ReadFile(path)
	ts.Check(err)
	info, err := os.Stat(path)
	ts.Check(err)
	if same := bytes.Equal(before, after) && info.ModTime().Equal(longAgo); same == neg {
		ts.Fatalf("%s: unchanged: %v", args[0], same)
	}
}

// holdLock runs "lock FILE". The file is open until the script ends.
func holdLock(ts *testscript.TestScript, _ bool, args []string) {
	store, err := dbfile.Open(ts.MkAbs(args[0]), nil, nil)
	ts.Check(err)
	ts.Defer(func() { store.Close() })
}

// serveFile runs "serve FILE LIMIT ID". Until the script ends, a program has
// the file open and shares it, with a token of id spent under the label Orders.
func serveFile(ts *testscript.TestScript, _ bool, args []string) {
	limit, err := stint.ParseLimit(args[1])
	ts.Check(err)
	limits, err := stint.NewLimits(stint.Names{orders: {Label: "Orders", Limit: limit}})
	ts.Check(err)
	lim, err := stint.Open(ts.MkAbs(args[0]), limits, nil)
	ts.Check(err)
	if !lim.Allow(orders.Key(args[2])) {
		ts.Fatalf("not allowed")
	}
	server, err := hostlimit.Serve(lim, ts.MkAbs(args[0]), nil)
	ts.Check(err)
	ts.Setenv("PID", strconv.Itoa(os.Getpid()))
	ts.Defer(func() { server.Close(); lim.Close() })
}

// flipByte runs "flip FILE ID". It flips a bit of each TAT that follows the id.
func flipByte(ts *testscript.TestScript, _ bool, args []string) {
	path, text := ts.MkAbs(args[0]), []byte(args[1])
	content, err := os.ReadFile(path)
	ts.Check(err)
	at, n := 0, 0
	for {
		i := bytes.Index(content[at:], text)
		if i < 0 {
			break
		}
		at += i + len(text)
		content[at+7] ^= 1 // the last byte of a TAT that follows
		n++
	}
	if n == 0 {
		ts.Fatalf("%s has no %q", args[0], text)
	}
	ts.Check(os.WriteFile(path, content, 0o600))
}

// makeMany runs "many FILE N [redis]". The file has N buckets as export writes
// them, or as redis-cli does.
func makeMany(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	first, format := `{"stint":1,"names":{"6":"Orders"}}`, `{"name":"Orders","id":"account-%d","tat":%d}`
	if len(args) > 2 {
		first, format = "", "6:account-%d\t%d"
	}
	var b bytes.Buffer
	b.WriteString(first + "\n")
	tat := time.Now().Add(time.Hour).UnixNano()
	for i := range n {
		fmt.Fprintf(&b, format+"\n", i, tat+int64(i))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o600))
}

// lookPath finds a command in the PATH of the script.
func lookPath(ts *testscript.TestScript, command string) (string, error) {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path, err := exec.LookPath(filepath.Join(dir, command)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", command, exec.ErrNotFound)
}

// signalWhen runs "signal FILE COMMAND [ARGS...]". The command reads the file
// from a pipe, and is interrupted after that.
func signalWhen(ts *testscript.TestScript, _ bool, args []string) {
	content, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	path, err := lookPath(ts, args[1])
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.Getenv("WORK")
	in, err := cmd.StdinPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	_, err = in.Write(content) // more than a pipe holds, so it has begun to read
	ts.Check(err)
	ts.Check(cmd.Process.Signal(os.Interrupt))
	err = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != console.StatusInterrupted {
		ts.Fatalf("exit status %d after an interrupt: %v", status, err)
	}
}

// interruptAt runs "interrupt PATTERN RESULT COMMAND [ARGS...]". It interrupts
// the command when the command's temporary file, which matches the pattern, is
// there. The command must remove that file, and leave no RESULT. If the command
// was done before the signal came, it is begun again. TRY in an argument is
// another number each time.
func interruptAt(ts *testscript.TestScript, _ bool, args []string) {
	const tries = 100
	path, err := lookPath(ts, args[2])
	ts.Check(err)
	dir := ts.Getenv("WORK")
	files := func(pattern string) int {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		ts.Check(err)
		return len(found)
	}
	for try := range tries {
		var stderr bytes.Buffer
		cmd := exec.Command(path)
		for _, arg := range args[3:] {
			cmd.Args = append(cmd.Args, strings.ReplaceAll(arg, "TRY", strconv.Itoa(7+try)))
		}
		cmd.Dir, cmd.Stderr = dir, &stderr
		ts.Check(cmd.Start())
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		if !seenBefore(ended, func() bool { return files(args[0]) > 0 }) {
			if status := cmd.ProcessState.ExitCode(); status != console.StatusDone {
				ts.Fatalf("exit status %d, and no interrupt: %s", status, &stderr)
			}
			ts.Check(os.RemoveAll(filepath.Join(dir, args[1])))
			continue
		}
		if err := cmd.Process.Signal(os.Interrupt); !errors.Is(err, os.ErrProcessDone) {
			ts.Check(err)
		}
		<-ended
		switch status := cmd.ProcessState.ExitCode(); {
		case status != console.StatusInterrupted && status != console.StatusDone:
			ts.Fatalf("exit status %d after an interrupt: %s", status, &stderr)
		case files(args[0]) > 0, files(args[1]) > 0 && status == console.StatusInterrupted:
			ts.Fatalf("exit status %d, and there is a %s or %s", status, args[0], args[1])
		case status == console.StatusDone:
			ts.Check(os.RemoveAll(filepath.Join(dir, args[1])))
		default:
			return
		}
	}
	ts.Fatalf("it was done %d times before an interrupt came", tries)
}

// seenBefore reports whether f was true before the channel was closed.
func seenBefore(ended <-chan struct{}, f func() bool) bool {
	for !f() {
		select {
		case <-ended:
			return false
		default:
			runtime.Gosched()
		}
	}
	return true
}
