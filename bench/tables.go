package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// A table is printed, and becomes a part of a file of results.
type table struct {
	title  string
	header []string
	rows   [][]string
	notes  []string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// markdown lays the table out so that it reads well as text, too.
func (t *table) markdown() string {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var s strings.Builder
	write := func(row []string) {
		for i := range widths {
			c := ""
			if i < len(row) {
				c = row[i]
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i == 0 {
				s.WriteString("| " + c + pad + " ")
			} else {
				s.WriteString("| " + pad + c + " ")
			}
		}
		s.WriteString("|\n")
	}
	fmt.Fprintf(&s, "### %s\n\n", t.title)
	write(t.header)
	for i, w := range widths {
		if i == 0 {
			s.WriteString("|" + strings.Repeat("-", w+2))
		} else {
			s.WriteString("|" + strings.Repeat("-", w+1) + ":")
		}
	}
	s.WriteString("|\n")
	for _, row := range t.rows {
		write(row)
	}
	for _, n := range t.notes {
		fmt.Fprintf(&s, "\n%s\n", n)
	}
	return s.String()
}

// report prints the tables, and writes them to a file with the header on top and the charts below.
func (b *bench) report(name, title string, tables []*table, charts ...string) error {
	var s strings.Builder
	fmt.Fprintf(&s, "# %s\n\n%s", title, b.header())
	for _, c := range charts {
		fmt.Fprintf(&s, "\n![%s](%s)\n", strings.TrimSuffix(c, ".svg"), c)
	}
	for _, t := range tables {
		fmt.Println(t.markdown())
		s.WriteString("\n" + t.markdown())
	}
	return b.write(name+".md", s.String())
}

// draw writes a chart, and returns the name of its file.
func (b *bench) draw(name string, c chart) string {
	if err := b.write(name+".svg", c.svg()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return name + ".svg"
}

// A team is contestants that take turns, each in a child of its own.
type team struct {
	b     *bench
	names []string

	mu      sync.Mutex
	members map[string]*child
	errs    []error
}

// assemble starts the children, and has them open their contestants. Missing
// ones are left out.
func (b *bench) assemble(cs []Contestant, w Workload, cfg Config, fill bool) *team {
	t := &team{b: b, members: make(map[string]*child)}
	cfg.IDs = w.IDs
	for _, c := range cs {
		ch, err := startChild(b.dir)
		if err != nil {
			t.errs = append(t.errs, err)
			continue
		}
		t.members[c.Name] = ch
		if _, ok := t.do(c.Name, order{Do: "open", Config: cfg, Workload: w}); ok {
			t.names = append(t.names, c.Name)
		}
	}
	if fill { // not measured: as many at a time as there are cores
		progress("%s: filling", w.Name)
		var wg sync.WaitGroup
		cores := make(chan struct{}, runtime.NumCPU())
		for _, name := range t.names {
			wg.Go(func() {
				cores <- struct{}{}
				t.do(name, order{Do: "fill"})
				<-cores
			})
		}
		wg.Wait()
	}
	return t
}

// do has one contestant carry out an order. A contestant that fails drops out.
func (t *team) do(name string, o order) (reply, bool) {
	t.mu.Lock()
	c := t.members[name]
	t.mu.Unlock()
	if c == nil {
		return reply{}, false
	}
	o.Contestant, o.Best = name, t.b.best
	r, err := c.do(o)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		c.process.End()
		delete(t.members, name)
		if errors.Is(err, errSkip) {
			t.b.skipped[name] = err.Error()
		} else {
			t.errs = append(t.errs, err)
			t.b.note(name, err)
		}
	}
	return r, err == nil
}

// note notes why a contestant dropped out. Fills run at the same time.
func (b *bench) note(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[name] = strings.ReplaceAll(err.Error(), "\n", "; ")
}

func (b *bench) failedFor(name string) (why string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	why, ok = b.failed[name]
	return why, ok
}

// disband ends the children, and returns what went wrong.
func (t *team) disband() error {
	for _, c := range t.members {
		c.process.End()
	}
	return errors.Join(t.errs...)
}

func progress(format string, args ...any) {
	if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		fmt.Fprintf(os.Stderr, "\r\033[K%s\r", fmt.Sprintf(format, args...))
	}
}

// notes lists what the contestants are, and which are missing.
func (b *bench) notes(cs []Contestant) (notes []string) {
	var s strings.Builder
	for _, c := range cs {
		exact := "exact"
		if !c.Exact {
			exact = "not exact"
		}
		if why, ok := b.skipped[c.Name]; ok {
			exact = "left out: " + why
		}
		if why, ok := b.failedFor(c.Name); ok {
			exact += "; **dropped out**: " + why
		}
		fmt.Fprintf(&s, "- %s: %s; %s\n", c.Name, c.Note, exact)
	}
	return []string{strings.TrimSuffix(s.String(), "\n")}
}

func nanoseconds(v float64) string {
	if v == 0 || math.IsNaN(v) {
		return "–"
	}
	return thousands(int64(math.Round(v)))
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f×", a/b)
}

func duration(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	case d < time.Millisecond:
		return significant(float64(d)/1e3) + " µs"
	case d < time.Second:
		return significant(float64(d)/1e6) + " ms"
	}
	return significant(d.Seconds()) + " s"
}

// significant writes three digits.
func significant(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func bytesText(n float64) string {
	switch {
	case n <= 0:
		return "–"
	case n < 1e4:
		return fmt.Sprintf("%.0f B", n)
	case n < 1e7:
		return significant(n/1e3) + " kB"
	}
	return significant(n/1e6) + " MB"
}

func count(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 1e6:
		return round(significant(v/1e6)) + "M"
	case v >= 1e3:
		return round(significant(v/1e3)) + "k"
	}
	return fmt.Sprintf("%.0f", v)
}

// round leaves out a fraction of zero.
func round(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, ".00"), ".0") }

// durationOf is duration, for an axis.
func durationOf(v float64) string {
	number, unit, _ := strings.Cut(duration(time.Duration(v)), " ")
	return round(number) + " " + unit
}

// sized returns the sizes that are not over -ids; at least the first.
func (b *bench) sized(sizes ...int) []int {
	for len(sizes) > 1 && sizes[len(sizes)-1] > b.maxIDs {
		sizes = sizes[:len(sizes)-1]
	}
	return sizes
}

func sizeWorkload(n int) Workload { return Workload{count(float64(n)), n, 0} }

func exactRivals() (names []string) {
	for _, c := range inMemory {
		if c.Exact && !strings.HasPrefix(c.Name, "stint") {
			names = append(names, c.Name)
		}
	}
	return names
}

func names(cs []Contestant) (names []string) {
	for _, c := range cs {
		names = append(names, c.Name)
	}
	return names
}

// fastest returns the smallest of the figures that there are.
func fastest(of map[string]float64, names []string) float64 {
	var vs []float64
	for _, name := range names {
		if v := of[name]; v > 0 {
			vs = append(vs, v)
		}
	}
	if len(vs) == 0 {
		return 0
	}
	return slices.Min(vs)
}
