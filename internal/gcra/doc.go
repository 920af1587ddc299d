// Package gcra has the arithmetic of limits.
//
// It is the Generic Cell Rate Algorithm, as the ATM Forum's Traffic Management
// Specification 4.0 (1996) gives it in its virtual scheduling form, over int64
// nanoseconds. A bucket is one number, its TAT (theoretical arrival time): the
// instant at which it will be full again. A TAT that is past, or absent (0), is
// a full bucket.
//
// Instants are Unix nanoseconds in [0, EndOfTime]. An instant outside counts as
// the nearer of the two. Time stands still there, and no token comes back. So a
// limiter is stricter then, never more generous.
package gcra
