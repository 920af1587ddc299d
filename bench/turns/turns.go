// Package turns lets the contestants of a benchmark take turns, each in a process of its
// own, with its own heap and its own collections. The process is this program again. It
// gets orders over a pipe. After each reply it is stopped, with everything that it does
// in the background, so that another contestant can be measured.
package turns

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// arg makes this program a contestant.
const arg = "a-child-of-the-benchmark"

// Args returns the arguments of Start, and whether this process was started by it.
func Args() (args []string, ok bool) {
	if len(os.Args) < 2 || os.Args[1] != arg {
		return nil, false
	}
	return os.Args[2:], true
}

// A Process is a contestant, as the program that started it has it.
type Process struct {
	Dir string // for its files, and its folder for temporary ones; empty at first

	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

// Start starts this program as a contestant, whose folder is in dir, or among the
// temporary ones if dir is empty. The thread that calls it must not end before the
// process.
func Start(dir string, args ...string) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if dir, err = os.MkdirTemp(dir, "c"); err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, append([]string{arg}, args...)...)
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = DieWithParent()
	cmd.SysProcAttr.Setpgid = true
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Process{dir, cmd, in, json.NewEncoder(in), json.NewDecoder(out)}, nil
}

// Ask wakes the process, sends it an order, and stops it after the reply.
func (p *Process) Ask(order, reply any) error {
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGCONT); err != nil {
		return err
	}
	if err := p.enc.Encode(order); err != nil {
		return err
	}
	if err := p.dec.Decode(reply); err != nil {
		return err
	}
	return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP)
}

// End ends the process, and removes its folder.
func (p *Process) End() {
	p.in.Close()
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.cmd.Wait()
	os.RemoveAll(p.Dir)
}

// Serve is the contestant's side. It answers orders until there are no more.
func Serve[Order, Reply any](answer func(Order) Reply) {
	enc, dec := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
	for {
		var o Order
		if dec.Decode(&o) != nil || enc.Encode(answer(o)) != nil {
			return
		}
	}
}
