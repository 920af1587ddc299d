// Package clock tells the time of decisions.
//
// A Clock starts at the time of the wall clock and then follows the monotonic
// clock, so it never goes back. Follow compares the Clock with the wall clock:
// if the wall clock is ahead, the Clock is set ahead too; if it was set back,
// the Clock goes on as before. Instants are Unix nanoseconds between 0 and the
// end given to New; a time outside that range counts as the nearer of the two.
//
// A device may boot with a wrong wall clock. So each save stores the time, and
// Begin compares the wall clock with it. If the wall clock cannot be right, the
// Clock continues from the save, and Health says why.
//
// The Limiter reads Now for every decision and calls Follow at every flush. Now
// takes no lock. The one mutex guards what Follow changes.
//
// The tests give a Clock a wall clock of their own.
package clock
