package modeltest

import (
	"errors"
	"sync"
)

// ErrDisk is the error of every fault.
var ErrDisk = errors.New("the disk is on fire")

// Fault is what happens to the next save or load.
type Fault uint8

// The faults. After a crash nothing reaches the disk any more.
const (
	NoFault Fault = iota
	FailLoad
	FailBefore
	FailAfter // the save is carried out, and then fails
	CrashBefore
	CrashAfter
)

// Disk stands between a System and its store. The adapter passes each save and
// load through it.
type Disk struct {
	mu    sync.Mutex
	fault Fault
	met   bool // the fault happened
	dead  bool // the fault was a crash

	block, blocked chan struct{} // hold up the next save
}

// Open returns the Session of a new process.
func (d *Disk) Open() *Session {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault, d.met, d.dead = NoFault, false, false
	return &Session{disk: d}
}

// Session is the Disk as one process uses it.
type Session struct {
	disk *Disk
	dead bool
}

// Kill keeps later saves from the disk.
func (s *Session) Kill() {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.dead = true
}

// Load does a load, unless it fails.
func (s *Session) Load(do func() error) error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.disk.fault == FailLoad {
		s.disk.fault, s.disk.met = NoFault, true
		return ErrDisk
	}
	return do()
}

// Save does a save, unless it fails.
func (s *Session) Save(do func() error) error {
	d := s.disk
	d.mu.Lock()
	block, blocked := d.block, d.blocked
	d.block, d.blocked = nil, nil
	d.mu.Unlock()
	if block != nil {
		close(blocked)
		<-block
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.dead {
		return ErrDisk
	}
	fault := d.fault
	if fault < FailBefore {
		return do()
	}
	d.fault, d.met = NoFault, true
	if fault == CrashBefore || fault == CrashAfter {
		s.dead, d.dead = true, true
	}
	if fault == FailAfter || fault == CrashAfter {
		do()
	}
	return ErrDisk
}

// Block holds up the next save until release is called. It closes blocked when
// the save comes.
func (d *Disk) Block() (blocked <-chan struct{}, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	block, here := make(chan struct{}), make(chan struct{})
	d.block, d.blocked = block, here
	return here, sync.OnceFunc(func() {
		d.mu.Lock()
		if d.block == block {
			d.block, d.blocked = nil, nil
		}
		d.mu.Unlock()
		close(block)
	})
}

// set arranges for a fault.
func (d *Disk) set(f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// begin starts a call: no fault has happened in it yet.
func (d *Disk) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.met = false
}

func (d *Disk) state() (met, dead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.met, d.dead
}
