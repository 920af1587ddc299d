package main

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
)

// An export has one JSON object in a line. The first is a header with the
// labels of the limits by number. Then comes one line for each bucket and each
// hold. A line names its limit by the label, because another file may have
// other numbers. The lines stay the same when the format of files changes.

type exportHeader struct {
	Stint int                   `json:"stint"` // 1
	Names map[stint.Name]string `json:"names"`
}

type exportLine struct {
	Name string `json:"name"`
	display.JSONID
	TAT  int64 `json:"tat,omitempty"`  // Unix nanoseconds
	Hold int64 `json:"hold,omitempty"` // end of a hold, instead of TAT
}

func newExport() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the buckets of a file as JSON lines",
		Long: `Write the buckets of a file that are not full, and the holds, as JSON lines. import reads them into
another file, even if its format is of another version. The exported file does not change.

The first line is {"stint":1,"names":{"6":"Orders"}}. Each other line is a bucket,
{"name":"Orders","id":"alice","tat":N}, or a hold, {"name":"Orders","id":"alice","hold":N}. N is the
instant at which the bucket is full or the hold ends, in Unix nanoseconds. An id that is not UTF-8 is
in base64, and "base64":true says so.`,
		Example: `  stint export --db quota.db > quota.jsonl
  stint export | gzip > quota.jsonl.gz`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.read(func(in *source) error { return failed(export(cmd, in)) })
		},
	}
	f.register(cmd, dbUsage)
	return cmd
}

func export(cmd *cobra.Command, in *source) error {
	bar := newProgress(cmd.ErrOrStderr(), "exporting", -1, false)
	defer bar.close()
	names := in.labels
	for name, label := range names {
		if !utf8.ValidString(label) { // JSON would change it
			return fmt.Errorf("the label %q of number %d is not UTF-8; "+
				"stint limits set-names gives it another", label, name)
		}
	}
	w := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<16)
	if err := display.WriteJSON(w, exportHeader{1, names}); err != nil {
		return err
	}
	for _, name := range append([]stint.Name{stint.Unknown}, slices.Sorted(maps.Keys(names))...) {
		for c, err := range in.store.All(name) {
			if err != nil {
				return err
			}
			if c.TAT <= in.now.UnixNano() {
				continue
			}
			key, line := c.Key, exportLine{TAT: c.TAT}
			if name == stint.Unknown {
				line = exportLine{Hold: c.TAT}
				if key, err = parseKey(c.Key.ID); err != nil {
					return err
				}
			}
			if line.Name, line.JSONID = names[key.Name], display.NewJSONID(key.ID); line.Name == "" {
				return fmt.Errorf("bucket %s: the file has no label for number %d; "+
					"stint limits set-names gives it one", key, key.Name)
			}
			if err := display.WriteJSON(w, line); err != nil {
				return err
			}
			bar.add(1)
		}
	}
	return w.Flush()
}
