package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/dbfile"
)

// timeOf returns the time of the file's buckets. If that is not the clock's, a
// warning says so.
func timeOf(cmd *cobra.Command, store dbfile.Store) (time.Time, error) {
	now, doubt, err := store.Now()
	if err == nil && doubt != nil && cmd != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), doubt)
	}
	return now, failed(err)
}
