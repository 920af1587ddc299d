// Package bboltpage reads and checks the pages of a bbolt file before bbolt
// does.
//
// bbolt trusts its pages. Most of what it meets in a damaged one is a panic or
// a memory fault, from which boltfile recovers. But some damage uses up the
// stack or the memory, and that ends the process. Examples are a branch that
// leads back to itself, and an endless list of free pages. So each page is
// checked, through the file, before bbolt reads it:
//
//   - the meta pages and the list of free pages when boltfile opens the file
//     (ReadMeta, CheckMeta, CheckFile),
//   - the pages of a bucket when they are first needed (Checker.Key,
//     Checker.Run), until the sweep of boltstore has been through all of them.
//
// bbolt writes a page without gaps, and the order of its keys and its length
// follow from what it holds. So few bytes of a page can change without an
// error here. Values can: the sums of the package format find those.
//
// fsck reads all pages with Checker.Leaves, also those that bbolt would not read.
// Snapshots seal meta pages with SealMeta.
//
// An error is ErrCorrupt, ErrFormat, or the operating system's; a file that
// ends too early is ErrCorrupt. A Checker may be used by several goroutines,
// and has no locks: it keeps one atomic bit for each page. The tests change
// the bytes of sound pages, in process, one table for all of them.
package bboltpage
