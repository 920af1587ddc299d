// Package bboltpage reads and checks the pages of a bbolt file before bbolt
// does.
//
// bbolt trusts its pages. Most kinds of damage make it panic or fault, from
// which boltfile recovers. Some damage uses up the stack or the memory, and
// that ends the process. Examples are a branch that leads back to itself, an
// absurd length, or an endless list of free pages. So each page is checked,
// through the file, before bbolt reads it:
//
//   - the meta pages and the list of free pages when boltfile opens the file
//     (ReadMeta, CheckMeta, CheckFile),
//   - the pages of a bucket when they are first needed (Checker.Key,
//     Checker.Run), until the sweep of boltstore has read the whole file.
//
// bbolt writes a page without gaps, and the order of its keys and its length
// follow from its contents. So the checks here notice a change of almost any
// byte outside the values. The sums of package format notice changed values.
//
// fsck reads all pages with Checker.Leaves, even those that bbolt would refuse.
// Snapshots seal meta pages with SealMeta.
//
// An error is ErrCorrupt, ErrFormat, or the operating system's. A file that
// ends too early is ErrCorrupt. A Checker may be used by several goroutines,
// and has no locks: it keeps one atomic bit for each page. The tests change
// bytes of sound pages.
package bboltpage
