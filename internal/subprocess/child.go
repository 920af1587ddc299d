package subprocess

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

const childVar = "STINT_TEST_CHILD"

// Children are programs that a test binary can run instead of its tests, by name.
// They get the arguments after the command.
type Children map[string]func(args []string)

// Run runs the child that this process was started for, if it was started for
// one, and ends the process. TestMain calls it.
func (c Children) Run() {
	if run, ok := c[os.Getenv(childVar)]; ok {
		run(os.Args[1:])
		os.Exit(0)
	}
}

// Become makes this process another child with the same arguments, once exec
// has run the program anew.
func Become(name string) { os.Setenv(childVar, name) }

// Say prints a line that ReadLine reads.
func Say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Child is another process of the test binary that runs one of its Children.
type Child struct {
	Cmd   *exec.Cmd
	Stdin io.WriteCloser
	Lines *bufio.Scanner // that it prints
}

// Self returns the command that runs the test binary.
func Self(ctx context.Context, args ...string) *exec.Cmd { return Command(ctx, os.Args[0], args...) }

// Start runs one of the Children in a process of its own.
func Start(t *testing.T, name string, args ...string) *Child {
	t.Helper()
	cmd := Self(t.Context(), args...)
	cmd.Env = append(os.Environ(), childVar+"="+name)
	return Begin(t, cmd)
}

// Begin starts a command whose lines a test reads.
func Begin(t *testing.T, cmd *exec.Cmd) *Child {
	t.Helper()
	c := &Child{Cmd: cmd}
	c.Cmd.Stderr = os.Stderr
	var err error
	c.Stdin, err = c.Cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.Cmd.StdoutPipe()
	require.NoError(t, err)
	c.Lines = bufio.NewScanner(out)
	require.NoError(t, c.Cmd.Start())
	return c
}

// ReadLine returns the next line that the child prints.
func (c *Child) ReadLine(t *testing.T) string {
	t.Helper()
	require.True(t, c.Lines.Scan(), "the child says nothing: %v", c.Lines.Err())
	return c.Lines.Text()
}

// Finish ends the child: it closes the child's standard input and waits.
func (c *Child) Finish(t *testing.T) {
	t.Helper()
	require.NoError(t, c.Stdin.Close())
	require.NoError(t, c.Cmd.Wait())
}
