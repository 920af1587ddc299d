package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// childArg makes this program a child, which has one contestant.
const childArg = "a-child-of-the-benchmark"

// A child is a process with one contestant, its own heap and its own collections. It is
// stopped, with what it does in the background, while others have their turn.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
	dir string // for its temporary files
}

// startChild starts a child, waits until it knows n addresses, and stops it.
func startChild(contestant, outcome string, n int) *child {
	exe, err := os.Executable()
	must(err)
	dir, err := os.MkdirTemp("", "middleware")
	must(err)
	cmd := exec.Command(exe, childArg, contestant, outcome, strconv.Itoa(n))
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), "TMPDIR="+dir)
	in, err := cmd.StdinPipe()
	must(err)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	c := &child{cmd, in, out, dir}
	c.turn(1, 0)
	return c
}

// turn wakes the child for one turn.
func (c *child) turn(threads int, length time.Duration) (t turn) {
	must(c.cmd.Process.Signal(syscall.SIGCONT))
	_, err := fmt.Fprintln(c.in, threads, int64(length))
	must(err)
	_, err = fmt.Fscanln(c.out, &t.ns, &t.allocs, &t.bytes)
	must(err)
	must(c.cmd.Process.Signal(syscall.SIGSTOP))
	return t
}

func (c *child) end() {
	must(c.cmd.Process.Kill())
	c.cmd.Wait()
	must(os.RemoveAll(c.dir))
}

// serveTurns is the child's side.
func serveTurns(args []string) {
	i := slices.IndexFunc(contestants, func(c contestant) bool { return c.name == args[0] })
	n, err := strconv.Atoi(args[2])
	must(err)
	s := newServer(contestants[i], args[1] == "allowed", n)
	var threads int
	var length int64
	for {
		if _, err := fmt.Scanln(&threads, &length); err == io.EOF {
			return
		} else {
			must(err)
		}
		t := s.turn(threads, time.Duration(length))
		fmt.Println(t.ns, t.allocs, t.bytes)
	}
}
