// Package format is docs/format.md in Go: what the bytes of a stint file mean.
//
// It defines the names of the database's buckets, how an id becomes a key, the
// entries and records of the journal, the frames of the log, and the sums. It
// reads and writes byte slices, and knows neither bbolt nor files: package
// boltfile writes the bytes to a file.
//
// The limiter and its store exchange Entries. An Entry is the number of a
// limit, an id and a TAT. Number 0 (Holds) stands for the holds: the id of a
// hold is the key of the held bucket, as text.
//
// Each function that reads bytes checks them first. It returns ErrCorrupt for
// bytes that docs/format.md does not allow. A record is read as a whole or not
// at all. ErrFormat means that the file is sound, but has another format.
//
// The package has no locks and no state. Its tests are tables and one fuzz
// test. The golden files of the root package check that it still reads and
// writes the bytes of earlier versions.
package format
