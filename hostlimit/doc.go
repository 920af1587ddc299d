// Package hostlimit lets several processes of one machine share the limits in
// one file, without a server to start.
//
// The first process that opens the file owns it, and serves it on a Unix socket
// beside it. The others are guests: they find the file locked, connect, and
// decide through the owner. When the owner closes or dies, one of the guests
// takes the file over, and the others connect to that one. A [Limiter] is a
// [stint.Decider] in both roles.
//
//	limiter, err := hostlimit.Open("quota.db", limits, nil)
//
// [Serve] is for a program that opens the file itself and wants guests, and
// [Dial] for an operator's command, which asks an owner and never becomes one.
//
// # Limits
//
// Each process's limits apply to its own requests, so two versions of a program
// with different limits may run side by side. A bucket is stored as the time at
// which it is full, without its limit. A Name must mean the same in all
// processes: another label for a number, or another number for a label, is
// [stint.ErrNameMismatch].
//
// # Durability
//
// The owner answers a guest when the durability level allows it: at leased
// and synced, the decision is on the disk before the answer. The death of an
// owner is a crash, as package stint describes it.
//
// # Errors
//
// The errors are those of [stint.Limiter], and errors.Is finds them also if
// they come from another process. A call that was under way when the owner died
// or stopped answering returns [ErrNoAnswer]: it may have been carried out. The
// Limiter repeats such a call only if it changes nothing. Later calls wait for
// the next owner, for at most Options.TakeoverTimeout, and then return
// [ErrNoOwner]: nothing was done. If the owner closes, only calls fail that it
// cannot answer within 250 ms.
//
// # Waiting
//
// Wait and Reserve join the owner's queue: first come, first served among all
// processes. If a guest dies, its requests leave the queue. If the owner closes,
// requests that Wait for a turn join the queue of the next owner; a Reservation
// keeps its turn.
//
// # The socket
//
// The socket is FILE.sock, with mode 0600. If that path has more than 100
// bytes, the socket is in /tmp/stint-UID, which has mode 0700, and is named by
// a hash of the path. The owner serves processes of its own user, of the file's
// user and of root, and refuses others. docs/hostlimit.md has more.
package hostlimit
