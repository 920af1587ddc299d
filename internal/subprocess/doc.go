// Package subprocess starts the programs of tests. Only tests use it. If the
// processor is emulated, the programs run in the same emulator.
package subprocess

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Var is the environment variable with the emulator's command: the value of
// go test -exec. It is empty if the processor is not emulated.
const Var = "STINT_EXEC"

// Emulated reports whether the processor is emulated.
func Emulated() bool { return os.Getenv(Var) != "" }

const programVar = "STINT_TEST_PROGRAM"

// Main runs the tests of a command. In the processes that they start with
// os.Args[0], it runs the command itself.
func Main(m *testing.M, command func()) {
	if os.Getenv(programVar) != "" {
		command()
		os.Exit(0)
	}
	os.Setenv(programVar, "1")
	os.Exit(m.Run())
}

// Command returns the command that runs a program.
func Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	argv := slices.Concat(strings.Fields(os.Getenv(Var)), []string{program}, args)
	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// Install makes path a command that runs program with the variables of env in
// its environment.
func Install(path, program string, env ...string) error {
	if !Emulated() && len(env) == 0 {
		return os.Symlink(program, path)
	}
	script := "#!/bin/sh\n"
	for _, variable := range append(env, Var+"="+os.Getenv(Var)) {
		script += fmt.Sprintf("export '%s'\n", variable)
	}
	script += fmt.Sprintf("exec %s '%s' \"$@\"\n", os.Getenv(Var), program)
	return os.WriteFile(path, []byte(script), 0o700)
}
