// Package spell reads and writes the small texts of limits: ids, integers,
// periods, and quotes in error texts.
//
// Packages stint, idformat, limitsfile, redislimit and cmd/stint call it, so that
// they accept the same spellings and report mistakes in the same words. It knows
// nothing of limits, and has no locks and no state.
//
// A Format made by NewFormat returns an id of 1 to MaxID bytes, or an error
// that wraps ErrInvalidID. A Period is never negative and never overflows.
// Period reads everything that ShortPeriod writes.
//
// Its tests are tables of spellings. The formats themselves are tested where
// they are defined.
package spell
