// Package fsck says whether a file is sound (Verify), and writes what can be
// read of a damaged one to a new file (Salvage). Only cmd/stint calls it,
// for verify and verify --repair.
//
// It opens the file itself, read-only, through boltfile. There is no store and
// there are no locks besides the file's own, which a program that has the file
// open holds. Verify reads all of the file in one transaction.
//
// Both read the pages themselves (reader.go), because bbolt stops, or worse, at
// the first damaged one. Neither changes anything in the file that it reads.
// Verify finds every single byte that changes in what stint reads: by the
// checks of bboltpage, the checksums of records, and the sums of buckets. It
// also reads the file as a store does that opens it.
//
// The tests flip bytes of sound files, and compare what is found or salvaged
// with what was in them.
package fsck
