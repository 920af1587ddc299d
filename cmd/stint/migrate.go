package main

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "migrate",
		Short:   "Import buckets from another program",
		Example: `  stint migrate redis --db quota.db 6=NewOrdersPerAccount < keys-and-values`,
		Args:    noArgs,
		RunE:    needCommand,
	}
	cmd.AddCommand(newMigrateRedis())
	return cmd
}

func newMigrateRedis() *cobra.Command {
	f := &importFlags{}
	cmd := &cobra.Command{
		Use:   "redis NUMBER=LABEL...",
		Short: "Import buckets from the Redis of a Boulder server",
		Long: `Import buckets from the Redis in which Boulder, the server of Let's Encrypt, keeps rate limits.

The keys and values are read from standard input. A key is a limit's number and an id, such as
6:12345678. Its value is the TAT, the time at which the bucket is full, in Unix nanoseconds. A key and
its value are in one line, or each in a line of its own. A key with an empty value has expired.

The arguments give the numbers labels. Numbers that the file already has need none. As with import,
the whole input is read first and then saved in one step. If the file already has the bucket, the
later TAT stays.`,
		Example: `  redis-cli --scan --pattern '[0-9]*:*' > keys
  xargs redis-cli mget < keys > values
  paste keys values > keys-and-values
  stint migrate redis --db quota.db 6=NewOrdersPerAccount 1=NewRegistrationsPerIPAddress < keys-and-values`,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := parseNames(args)
			if err != nil {
				return err
			}
			return f.importFrom(cmd, nil, func(lines *lineReader) (*imported, error) {
				if err := f.addNames(names); err != nil {
					return nil, err
				}
				return readRedis(names, lines)
			})
		},
	}
	f.register(cmd)
	return cmd
}

func readRedis(names map[stint.Name]string, lines *lineReader) (*imported, error) {
	in := &imported{names: names, changes: map[stint.Key]int64{}}
	for lines.next() {
		text, value, both := strings.Cut(strings.TrimRight(string(lines.text), "\r"), "\t")
		if i := strings.LastIndexByte(text, ' '); !both && i > 0 {
			text, value, both = text[:i], text[i+1:], true
		}
		if text == "" {
			continue
		}
		key, err := parseKey(text)
		if err != nil {
			return nil, lines.wrong("%w", err)
		}
		if names[key.Name] == "" {
			return nil, lines.wrong("key %q: no label for number %d: say %d=LABEL", text, key.Name, key.Name)
		}
		if !both {
			if !lines.next() {
				return nil, lines.wrong("key %q has no value: the input ends here", text)
			}
			value = string(lines.text)
		}
		if value = strings.TrimSpace(value); value == "" || value == "(nil)" {
			in.past++
			continue
		}
		tat, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, lines.wrong("key %q has the value %q: want a TAT, in Unix nanoseconds", text, value)
		}
		if tat > 0 && tat < 1e18 { // the year 2001
			return nil, lines.wrong("key %q has the value %d, which is not a TAT in Unix nanoseconds", text, tat)
		}
		in.add(key, tat, false)
	}
	if lines.Err() == nil && in.past+len(in.changes) == 0 {
		return nil, lines.wrong("it has no keys: want those of a Redis, with their values")
	}
	return in, lines.Err()
}

// addNames adds the labels that the file has for other numbers.
func (f *importFlags) addNames(names map[stint.Name]string) error {
	store, err := f.db.open(changing)
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
	return failed(store.Close())
}
