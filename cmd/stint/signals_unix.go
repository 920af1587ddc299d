//go:build unix

package main

import (
	"os"
	"syscall"
)

// passedOn are the signals that a command run by stint gets in its place.
var passedOn = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
