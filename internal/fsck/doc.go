// Package fsck checks a file (Verify), and copies the readable part of a
// damaged file to a new one (Salvage). Only cmd/stint calls it, for verify and
// verify --repair.
//
// It opens the file itself, read-only, through boltfile, without a store. The
// only lock is the file's own, so no program may have the file open for
// writing. Verify reads all of the file in one transaction.
//
// Both read the pages themselves (reader.go), because bbolt stops or crashes at
// the first damaged page. Neither changes the file. Verify finds a change of
// any single byte that stint reads. It uses the checks of bboltpage, the
// checksums of records, and the sums of buckets. It also reads everything that
// a store reads when it opens the file.
//
// The tests flip bytes of sound files, and compare the findings and the
// salvaged entries with the original.
package fsck
