package main

import "syscall"

// dieWithParent has a process end when the one that started it does, however that ends.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
