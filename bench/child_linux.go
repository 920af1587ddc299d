package main

import "syscall"

// dieWithParent makes a process end when its parent ends, for any reason.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
