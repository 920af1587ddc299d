// Package format is docs/format.md in Go: what the bytes of a stint file mean.
//
// It knows the names of the database's buckets, and how an id becomes a key. It
// also knows the entries and records of the journal, the frames of the log, and
// the sums. It reads and writes byte slices, and knows neither bbolt nor files:
// the package boltfile puts the bytes in their places.
//
// An Entry is what crosses the border between the limiter and its store: the
// number of a limit, an id and a TAT. Number 0 (Holds) stands for the holds,
// whose id is the held bucket's key as text.
//
// Everything that reads bytes checks them first, and returns ErrCorrupt for
// what docs/format.md does not allow. A record is read as a whole or not at
// all. ErrFormat is for a file that is sound, and not of this format.
//
// The package has no locks and no state. Its tests are tables and one fuzz
// test; the golden files of the root package hold it to the bytes of earlier
// versions.
package format
