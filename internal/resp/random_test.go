package resp

import (
	"math/rand/v2"
	"testing"

	"github.com/stint-go/stint/internal/testlength"
)

// Random changes to what clients send give commands or a ProtocolError, within
// the bounds. FuzzReader looks for other inputs.
func TestReaderRandom(t *testing.T) {
	inputs := testlength.Of(10_000_000, 200_000)
	random := rand.New(rand.NewPCG(1, uint64(inputs)))
	seeds := []string{"*1\r\n$4\r\nPING\r\n", "*3\r\n$3\r\nDEL\r\n$1\r\na\r\n$0\r\n\r\n", "PING \"a\" b\r\n", "*-1\r\n*0\r\n",
		"*5\r\n$11\r\nCL.THROTTLE\r\n$6\r\nuser:1\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n", "*64\r\n", "$16384\r\n", "*2\r\n$9\r\n"}
	const bytes = "*$\r\n0123456789-abc\"' \x00\xff"
	commands, wrong := 0, 0
	var sent []byte
	for range inputs {
		sent = sent[:0]
		for range 1 + random.IntN(3) {
			sent = append(sent, seeds[random.IntN(len(seeds))]...)
		}
		for range random.IntN(4) {
			switch at := random.IntN(len(sent)); random.IntN(3) {
			case 0:
				sent[at] = bytes[random.IntN(len(bytes))]
			case 1:
				sent = append(sent[:at], sent[min(len(sent), at+1+random.IntN(4)):]...)
				sent = append(sent, 'x')
			case 2:
				sent = append(sent, bytes[random.IntN(len(bytes))])
			}
		}
		r := Reader{from: nil, buf: make([]byte, len(sent))}
		r.end = copy(r.buf, sent)
		for {
			command, err := r.Next()
			if err != nil {
				wrong++
			}
			if command == nil {
				break
			}
			if commands++; len(command) > MaxArgs || r.start > r.end {
				t.Fatalf("%q: %q", sent, command)
			}
		}
	}
	t.Logf("%d commands, %d errors", commands, wrong)
	if commands < inputs/10 || wrong < inputs/10 {
		t.Fatal("the inputs are of one kind")
	}
}
