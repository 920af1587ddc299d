// Package boltfile is one open bbolt file: opening and locking it, transactions
// on it, the commit log inside it, and making and replacing it. It takes the
// layout of a stint file from package format, and knows nothing of limits.
//
// boltstore has one File open for each store, and a second one during a
// compaction. fsck opens files to verify and salvage them.
//
// What it guarantees:
//
//   - A file is checked by bboltpage before bbolt reads it. A panic or a memory
//     fault inside bbolt becomes ErrCorrupt. After the first one every call
//     returns that error, and bbolt is not called again, because a lock inside
//     it may be held for ever.
//   - A file that bbolt did not write is ErrFormat, a file that another process
//     uses is ErrLocked, and an error of the operating system is neither.
//   - A new file gets its name only once it is complete and durable (Make). One
//     file takes the place of another in one step (ReplaceWith). A file that
//     another program put at the path is never replaced (InPlace).
//   - A file that is truncated while it is open is not written to again.
//   - Append acknowledges a small save after one write and one sync. A commit
//     of bbolt needs two of each. The log is part of the journal: each
//     transaction first moves the records of the log into the tree.
//   - After a failed commit or append, the state of the disk is unknown. The
//     next save is therefore a transaction, which first rewrites what may be
//     missing, or fails too.
//
// The order of the locks is: commitLog.mu, views. Update and Append hold
// commitLog.mu while they write. BuildUpon writes without it, because no other
// goroutine has the File yet. Each reader holds views for reading. After a
// failed commit the next writer locks views once, to wait until no reader uses
// the pages that the commit freed.
//
// An FS holds the calls to the operating system that a test replaces to make
// them fail. It is an option of Open, so tests may run in parallel. bbolt's own
// writes do not go through it; failCommits in the tests of boltstore replaces
// them.
package boltfile
