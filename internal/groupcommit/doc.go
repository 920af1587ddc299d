// Package groupcommit lets callers that wait at the same time share one save.
//
// A Batch collects work. The save of a Batch begins after the last save has
// ended and its callers, even those in other processes, have had time to submit
// more work. Later work goes into the next Batch. Work that no caller waits for
// shares the same batches, and may wait longer.
//
// Package cache provides the save function, which writes the work to the store
// and finishes every entry of it before the callers wake up. Package
// groupcommit knows nothing of buckets or stores.
//
// Locks, in order: the Locker given to New, which is held during a save; the
// caller's locks; the Group's mutex, which Lock holds. A save runs without the
// Group's mutex.
//
// The tests count callers and saves in a synctest bubble.
package groupcommit
