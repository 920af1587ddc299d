//go:build unix

package main

import (
	"os"
	"syscall"
)

// passedOn are the signals that run passes on to its command.
var passedOn = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2}
