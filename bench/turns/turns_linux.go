package turns

import "syscall"

// DieWithParent makes a process end when its parent ends, for any reason.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
