package stint

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The kernel knows that large pages are wanted where the slots are, whether it has any to give or not.
func TestLargePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("the system has none: ", err)
	}
	tab := newTable(limitsOf(t, Names{1: {Label: "a"}}, map[Name]Limit{1: PerHour(5)}), 1)
	s, _ := tab.shard(Name(1).Key("x"))
	s.resizeLocked(100_000)
	first := uintptr(unsafe.Pointer(s.slots.Load()))
	for at := first; at < first+uintptr(s.capacity.Load()*s.stride); at += 1 << 20 {
		require.Contains(t, pageFlags(t, at), " hg", "at %x", at)
	}
}

// pageFlags returns what the kernel knows of the mapping that an address is in.
func pageFlags(t *testing.T, addr uintptr) string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	here := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var begin, end uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &begin, &end); n == 2 {
			here = begin <= addr && addr < end
		} else if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && here {
			return flags
		}
	}
	t.Skip("the system does not tell")
	return ""
}
