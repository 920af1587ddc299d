package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

type statFlags struct {
	db  dbFlags
	out console.Output
}

func newStat() *cobra.Command {
	f := &statFlags{}
	cmd := &cobra.Command{
		Use:   "stat",
		Short: "Show how large the file is, and how many buckets each limit has",
		Long: `Show how large the file is, and how much of it is free or in its journal. For each limit, show how
many buckets it has: live ones, and expired ones, which are full and will be deleted. The file does
not change.

--json prints one object: file, pid (of the program that has it open), format, bytes, free_bytes,
journal_bytes, journaled, holds, and limits (name, number, live, expired).`,
		Example: `  stint stat
  stint stat --db quota.db --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.db.Read(cmd.Context(), func(in *source.Source) error {
				st, err := f.count(cmd, in)
				if err != nil {
					return console.Failed(err)
				}
				return f.out.Print(cmd.OutOrStdout(), st, st.String())
			})
		},
	}
	f.db.register(cmd, dbUsage)
	registerJSON(cmd, &f.out)
	return cmd
}

type fileStat struct {
	File      string      `json:"file"`
	PID       int         `json:"pid,omitempty"` // of the program that has it open
	Format    int         `json:"format"`
	Bytes     int64       `json:"bytes"`
	Free      int64       `json:"free_bytes"`
	Journal   int64       `json:"journal_bytes"`
	Journaled int64       `json:"journaled"`
	Holds     int         `json:"holds"`
	Limits    []limitStat `json:"limits"`
}

type limitStat struct {
	Name    string     `json:"name"`
	Number  stint.Name `json:"number"`
	Live    int64      `json:"live"`
	Expired int64      `json:"expired"`
}

func (f *statFlags) count(cmd *cobra.Command, in *source.Source) (*fileStat, error) {
	held, err := source.Holds(in.Store, in.Now)
	if err != nil {
		return nil, err
	}
	path, _, _ := f.db.Locate()
	info := in.Store.Stats()
	st := &fileStat{File: path, Format: info.Format, Bytes: info.Bytes, Free: info.Free, Journal: info.Journal,
		Journaled: info.Journaled, Holds: len(held), PID: in.PID, Limits: []limitStat{}}
	bar := console.NewProgress(cmd.ErrOrStderr(), "counting", -1, false)
	defer bar.Close()
	names := in.Labels
	for _, name := range slices.Sorted(maps.Keys(names)) {
		l := limitStat{Name: names[name], Number: name}
		for c, err := range in.Store.All(name) {
			if err != nil {
				return nil, err
			}
			if c.TAT > in.Now.UnixNano() {
				l.Live++
			} else {
				l.Expired++
			}
			bar.Add(1)
		}
		st.Limits = append(st.Limits, l)
	}
	return st, nil
}

func (st *fileStat) String() string {
	open := "by no program"
	if st.PID != 0 {
		open = fmt.Sprintf("by process %d, which sent this copy of the file", st.PID)
	}
	table := display.Table{Header: []string{"number", "limit", "live", "expired"}}
	for _, l := range st.Limits {
		table.Rows = append(table.Rows, []string{fmt.Sprint(l.Number), display.Printable(l.Name),
			fmt.Sprint(l.Live), fmt.Sprint(l.Expired)})
	}
	return fmt.Sprintf("file     %s, format %d\nopen     %s\nsize     %s, of which %s are free\n"+
		"journal  %s, with %s not yet in the tree\nholds    %d\n\n%s", display.Visible(st.File), st.Format, open,
		display.Size(st.Bytes), display.Size(st.Free), display.Size(st.Journal),
		display.Plural(int(st.Journaled), "bucket"), st.Holds, table.Text(0))
}
