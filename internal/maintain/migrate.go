package maintain

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/source"
)

// Redis reads keys and values of a Boulder server's Redis. names has the labels of
// its numbers.
func (f *Import) Redis(ctx context.Context, names map[stint.Name]string) error {
	added := false
	return f.from(ctx, func(lines *lineReader) (map[stint.Name]string, iter.Seq2[stint.Change, error], error) {
		if !added {
			if err := f.addNames(names); err != nil {
				return nil, nil, err
			}
			added = true
		}
		return names, func(yield func(stint.Change, error) bool) {
			n := 0
			for c, err := range lines.keys(names) {
				n++
				if !yield(c, err) {
					return
				}
			}
			if n == 0 {
				yield(stint.Change{}, lines.wrong("it has no keys: want those of a Redis, with their values"))
			}
		}, nil
	})
}

// keys yields the keys of the lines, with their values.
func (r *lineReader) keys(names map[stint.Name]string) iter.Seq2[stint.Change, error] {
	return func(yield func(stint.Change, error) bool) {
		for r.next() {
			text, value, both := strings.Cut(strings.TrimRight(string(r.text), "\r"), "\t")
			if i := strings.LastIndexByte(text, ' '); !both && i > 0 {
				text, value, both = text[:i], text[i+1:], true
			}
			if text == "" {
				continue
			}
			c, err := r.key(text, names)
			if err == nil && !both && !r.next() {
				err = r.wrong("key %q has no value: the input ends here", text)
			} else if err == nil && !both {
				value = string(r.text)
			}
			if err == nil {
				c.TAT, err = r.tat(text, strings.TrimSpace(value))
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
		if err := r.Err(); err != nil {
			yield(stint.Change{}, err)
		}
	}
}

func (r *lineReader) key(text string, names map[stint.Name]string) (c stint.Change, err error) {
	if c.Key, err = source.ParseKey(text); err != nil {
		return c, r.wrong("%w", err)
	}
	if names[c.Key.Name] == "" {
		return c, r.wrong("key %q: no label for number %d: say %d=LABEL", text, c.Key.Name, c.Key.Name)
	}
	return c, nil
}

// tat returns the TAT that is the value of a key, or 0 for one that has expired.
func (r *lineReader) tat(key, value string) (int64, error) {
	if value == "" || value == "(nil)" {
		return 0, nil
	}
	tat, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, r.wrong("key %q has the value %q: want a TAT, in Unix nanoseconds", key, value)
	}
	if tat > 0 && tat < 1e18 { // the year 2001
		return 0, r.wrong("key %q has the value %d, which is not a TAT in Unix nanoseconds", key, tat)
	}
	return tat, nil
}

// addNames adds the labels that the file has for other numbers.
func (f *Import) addNames(names map[stint.Name]string) error {
	store, err := f.File.Open(source.Changing)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for name, label := range store.Labels() {
		if names[name] == "" && !slices.Contains(slices.Collect(maps.Values(names)), label) {
			names[name] = label
		}
	}
	return console.Failed(store.Close())
}
