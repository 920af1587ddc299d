// Package hostlimit lets several processes of one machine share the limits in
// one file, without a server to start.
//
// The first process that opens the file owns it, and serves it on a Unix socket
// beside it. The others are guests: they find the file locked, connect, and
// decide through the owner. When the owner closes or dies, one of the guests
// takes the file over, and the others connect to that one. A [Limiter] has the
// methods of a [stint.Limiter] in both roles, without those that only the owner
// of a file needs.
//
//	limiter, err := hostlimit.Open("quota.db", limits, nil)
//
// [Serve] is for a program that opens the file itself and wants guests, and
// [Dial] for an operator's command, which asks an owner and never becomes one.
//
// # Limits
//
// Each process's limits apply to its own requests, so two versions of a program
// with different limits may run side by side. The file records when a bucket will
// be full, not its limit. A Name must mean the same in all processes. If
// another process gives a number another label, or a label another number, the
// error is [stint.ErrNameMismatch].
//
// # Durability
//
// The owner answers a guest as soon as the durability level allows: at leased
// and synced, a decision that was answered survives any crash. The death of an
// owner costs what package stint says a crash may cost.
//
// # Errors
//
// The errors are those of [stint.Limiter], and errors.Is finds them even if
// they come from another process. If the owner dies or stops answering, the
// Limiter repeats those calls under way that change nothing. Any other call
// under way returns [ErrNoAnswer], because it may have been carried out. Later
// calls wait for the next owner, for at most Options.TakeoverTimeout at a time,
// and then return [ErrNoOwner]: nothing was done. An owner that hangs keeps the
// file: no guest takes it over until that process dies. If the owner closes,
// only the calls that it cannot answer within 250 ms fail.
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
// The socket is FILE.sock, or a hash of that name if it is longer than 48 bytes,
// with mode 0600. On Linux, macOS and FreeBSD, owner and guest ask the system for
// the user at the other end before they send anything, and accept their own user,
// the file's user and root. A socket that an earlier owner left is replaced.
// Anything else at its path stays there, and Open returns [ErrRefused].
// docs/hostlimit.md explains more.
//
// # Locks
//
// Limiter.changing is locked before Limiter.mu. The mutexes of conn, Server and
// serverConn are held only for moments, except that a Server's may be held
// while it makes a socket. None is held while another one is taken.
package hostlimit
