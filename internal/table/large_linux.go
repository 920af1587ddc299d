package table

import (
	"syscall"
	"unsafe"
)

// wantLargePages asks for pages of 2 MiB for mem, which is untouched so far.
// It is a hint. It covers mem from the start of its first such page to the end
// of its last, so neighbours in memory get them as well.
func wantLargePages(mem []byte) {
	const large = 2 << 20
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	first, end := begin&^(large-1), (begin+uintptr(len(mem))+large-1)&^(large-1)
	syscall.Syscall(syscall.SYS_MADVISE, first, end-first, syscall.MADV_HUGEPAGE)
}
