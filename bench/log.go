package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// bareLog is not a limiter. It only appends a record of each decision to a
// preallocated file, together with the records of other callers that wait. Nothing
// that is durable can be faster on this disk.
var bareLog = Contestant{"bare log", true,
	"the limit of the disk: appends to a preallocated file, O_DSYNC, group commit; decides nothing",
	func(cfg Config) (Decider, error) { return openLog(cfg, syscall.O_DSYNC) }}

// writeAndSync is bareLog with the two calls that most programs make.
var writeAndSync = Contestant{"pwrite + fdatasync", true,
	"appends to a preallocated file, with group commit; decides nothing",
	func(cfg Config) (Decider, error) { return openLog(cfg, 0) }}

func openLog(cfg Config, flag int) (Decider, error) {
	f, err := os.OpenFile(filepath.Join(cfg.Dir, "log"), os.O_RDWR|os.O_CREATE|flag, 0o600)
	if err != nil {
		return nil, err
	}
	for range logSize >> 20 { // written, so that later writes change no metadata
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			return nil, err
		}
	}
	none := make(chan struct{})
	close(none)
	return &logDecider{f: f, syncs: flag == 0, batch: newLogBatch(none)}, nil
}

const logSize = 64 << 20

type logDecider struct {
	f      *os.File
	syncs  bool  // after each write
	offset int64 // used by the caller that writes

	mu    sync.Mutex
	batch *logBatch // collects records
}

type logBatch struct {
	records []byte
	after   chan struct{} // closed when the batch before is durable
	durable chan struct{} // closed when this batch is durable
	err     error
}

func newLogBatch(after chan struct{}) *logBatch {
	return &logBatch{after: after, durable: make(chan struct{})}
}

func (d *logDecider) Allow(id string) bool {
	d.mu.Lock()
	b := d.batch
	first := len(b.records) == 0
	b.records = append(b.records, id...)
	b.records = binary.LittleEndian.AppendUint64(b.records, uint64(time.Now().UnixNano()))
	d.mu.Unlock()
	if first {
		<-b.after
		d.write(b)
	} else {
		<-b.durable
	}
	must(b.err)
	return true
}

// write writes the batch to the file.
func (d *logDecider) write(b *logBatch) {
	d.mu.Lock()
	for n := 0; n < len(b.records); { // callers that are about to append join the batch
		n = len(b.records)
		d.mu.Unlock()
		runtime.Gosched()
		d.mu.Lock()
	}
	d.batch = newLogBatch(b.durable)
	d.mu.Unlock()
	if d.offset+int64(len(b.records)) > logSize {
		d.offset = 0
	}
	if _, b.err = d.f.WriteAt(b.records, d.offset); b.err == nil && d.syncs {
		b.err = syncData(d.f)
	}
	d.offset += int64(len(b.records))
	close(b.durable)
}

// Fill has nothing to do.
func (d *logDecider) Fill(Workload) error { return nil }

func (d *logDecider) Close() error { return d.f.Close() }
