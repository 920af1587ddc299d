// Command memory spends once from each of so many ids, in an arbitrary order,
// and prints the most resident memory that it had, in bytes: all of it, its
// own, and pages of files. TestMemory builds and runs it.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/stint-go/stint"
)

func main() {
	ids, err := strconv.Atoi(os.Args[2])
	mustNot(err)
	limits, err := stint.NewLimits(stint.Names{1: {Label: "clients", Limit: stint.PerHour(60)}})
	mustNot(err)
	l, err := stint.Open(os.Args[1], limits, &stint.Options{MaxResident: 10_000})
	mustNot(err)
	var most memory
	for i := range ids {
		key := stint.Name(1).Key(fmt.Sprintf("client-%07d", i*7919%ids))
		_, err := l.Spend(key, 1)
		for errors.Is(err, stint.ErrFull) { // the disk is slower than the flood
			_, err = l.Spend(key, 1)
		}
		mustNot(err)
		if i%1000 == 0 || i == ids-1 {
			m := readMemory()
			most = memory{max(most.all, m.all), max(most.own, m.own), max(most.files, m.files)}
		}
	}
	fmt.Println(most.all, most.own, most.files)
	mustNot(l.Close())
}

func mustNot(err error) {
	if err != nil {
		panic(err)
	}
}

type memory struct{ all, own, files int64 }

// readMemory returns what the system counts as resident memory of this process.
func readMemory() (m memory) {
	file, err := os.Open("/proc/self/status")
	mustNot(err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		field := map[string]*int64{"VmRSS": &m.all, "RssAnon": &m.own, "RssFile": &m.files}[name]
		if field == nil {
			continue
		}
		_, err := fmt.Sscanf(value, "%d kB", field)
		mustNot(err)
		*field <<= 10
	}
	return m
}
