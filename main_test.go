package stint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// children are what the test binary does, in place of the tests, where childVar names one of them.
var children = map[string]func(args []string){}

const childVar = "STINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if run, ok := children[os.Getenv(childVar)]; ok {
		run(os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is another process that runs one of the children.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// startChild runs one of the children in a process of its own.
func startChild(t *testing.T, name string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: exec.CommandContext(t.Context(), exe, args...)}
	c.cmd.Env = append(os.Environ(), childVar+"="+name)
	c.cmd.Stderr = os.Stderr
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.lines = bufio.NewScanner(out)
	require.NoError(t, c.cmd.Start())
	return c
}

// readLine returns the next line that the child prints.
func (c *child) readLine(t *testing.T) string {
	t.Helper()
	require.True(t, c.lines.Scan(), "the child says nothing: %v", c.lines.Err())
	return c.lines.Text()
}

// finish tells the child to end, by closing its standard input, and waits for it.
func (c *child) finish(t *testing.T) {
	t.Helper()
	require.NoError(t, c.stdin.Close())
	require.NoError(t, c.cmd.Wait())
}

// say prints a line that readLine reads.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func limitsOf(t testing.TB, names Names, defaults map[Name]Limit) *Limits {
	t.Helper()
	ls, err := NewLimits(names, defaults, nil)
	require.NoError(t, err)
	return ls
}
