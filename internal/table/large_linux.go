package table

import (
	"syscall"
	"unsafe"
)

// wantLargePages asks for pages of 2 MiB for mem, which is not in use yet. It
// is a hint. The kernel takes whole pages, so it may also affect memory before
// and after mem.
func wantLargePages(mem []byte) {
	const large = 2 << 20
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	first, end := begin&^(large-1), (begin+uintptr(len(mem))+large-1)&^(large-1)
	syscall.Syscall(syscall.SYS_MADVISE, first, end-first, syscall.MADV_HUGEPAGE)
}
