package serve

import (
	"fmt"
	"testing"

	"github.com/stint-go/stint/internal/modeltest"
)

// What CL.THROTTLE costs without the system calls: one or 16 keys of 100,000 in
// each read.
func BenchmarkServeThrottle(b *testing.B) {
	c := &serveConn{server: newTestServer(b, modeltest.NewClock(), nil), known: true}
	commands := make([][][]byte, 100_000)
	for i := range commands {
		commands[i] = [][]byte{[]byte("CL.THROTTLE"), fmt.Appendf(nil, "key:%012d", i), []byte("15"), []byte("30"), []byte("60")}
	}
	for _, together := range []int{1, 16} {
		b.Run(fmt.Sprint(together), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				c.do(commands[i*7919%len(commands)])
				if (i+1)%together == 0 {
					c.decide()
					c.out.Buf = c.out.Buf[:0]
				}
			}
		})
	}
}
