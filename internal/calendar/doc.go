// Package calendar computes the periods of quotas that follow the calendar:
// hours, days, weeks from Monday, months and years in a time zone.
//
// The clock of a zone may be set forward or back, so a midnight may come twice
// or not at all, and even a whole date may be missing. A date begins at the
// last instant at which the clock of the zone shows its start. If there is no
// such instant, it begins when the clock is set past its start. So dates begin
// in order, and each instant belongs to one period.
//
// An hour begins whenever the clock of the zone shows its start. So an hour that
// comes twice is two periods, and one that is skipped is none. If a clock is
// moved by half an hour, one period is 30 or 90 minutes long.
//
// A Period contains now: Start ≤ now < End. The end of a period is the start of
// the next one, and no period is shorter than half an hour in any zone of the
// tz database from 1990 on.
//
// Calendars are kept in a table for the whole process, so that an Index stands
// for a unit, a zone and a start: two calendars are the same if their Indexes
// are equal. The table and the zones that were loaded are guarded by one mutex. No
// other lock is taken while it is held.
package calendar
