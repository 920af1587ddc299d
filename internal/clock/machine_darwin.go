package clock

import (
	"sync"

	"golang.org/x/sys/unix"
)

// bootID returns the id of the present boot, or "".
var bootID = sync.OnceValue(func() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
})

// kernel returns the id of the boot and the time since it, or "".
func kernel() (boot string, since int64) {
	var t unix.Timespec
	if bootID() == "" || unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return "", 0
	}
	return bootID(), t.Nano()
}
