package stint

import (
	"syscall"
	"unsafe"
)

// wantLargePages asks for pages of 2 MiB where mem is, which nobody has written to yet. It is a hint, and reaches to where
// such pages begin and end: shards that lie side by side share them, with whatever else comes to stand there.
func wantLargePages(mem []byte) {
	const large = 2 << 20
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	first, end := begin&^(large-1), (begin+uintptr(len(mem))+large-1)&^(large-1)
	syscall.Syscall(syscall.SYS_MADVISE, first, end-first, syscall.MADV_HUGEPAGE) // where there are none: so be it
}
