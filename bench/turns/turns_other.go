//go:build unix && !linux

package turns

import "syscall"

// DieWithParent does nothing: only Linux has that.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
