package source

import (
	"fmt"
	"time"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
)

// TimeOf returns the time of the file's buckets. If that is not the clock's, a
// warning says so.
func (f *File) TimeOf(store dbfile.Store) (time.Time, error) {
	now, doubt, err := store.Now()
	if err == nil && doubt != nil {
		fmt.Fprintln(f.ErrOut(), doubt)
	}
	return now, console.Failed(err)
}
