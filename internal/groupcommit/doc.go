// Package groupcommit lets callers that wait at the same time share one save.
//
// A Batch collects work. A save begins after the one before it has ended and
// its callers had a chance to come again. Work that arrives later goes into the
// next Batch. Work that no caller waits for goes into the same batches, and
// does not hurry them.
//
// The root package gives it a save function, which writes the work to the
// store and finishes every entry of it before the callers wake up. The package
// knows nothing of buckets or stores.
//
// Locks, in order: the Locker given to New, which is held during a save; the
// locks of the caller; the Group's mutex, which Lock holds and a save does not.
//
// The tests count callers and saves in a synctest bubble.
package groupcommit
