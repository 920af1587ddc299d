package main

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// The least that a limiter does: it hashes the id, fetches its state, reads the
// clock, and adds to a TAT. The table has a fixed size, in pages of 2 MiB.
// There is no lock, and one limit. It evicts, flushes and reports nothing. One
// goroutine fills it before it is measured.
var (
	least = []Contestant{
		{"the least, ids", true, "a table of 42 bytes a bucket, its id among them, and nothing else of a limiter",
			openLeast(false, false)},
		{"the least, hashes", true, "likewise, 34 bytes: 128 bits of hash, and no id", openLeast(true, false)},
	}
	leastGrouped = []Contestant{
		{"the least, ids, 64 at a time", true, "likewise, one clock reading, and the accesses overlap",
			openLeast(false, true)},
		{"the least, hashes, 64 at a time", true, "likewise", openLeast(true, true)},
	}
)

const (
	blockSize = 128 // two cache lines: four ids with their TATs, or five hashes
	blockLen  = blockSize / 8
	hugePage  = 2 << 20
)

func openLeast(hashes, group bool) func(Config) (Decider, error) {
	return func(cfg Config) (Decider, error) {
		perID := 42.0
		if hashes {
			perID = 34
		}
		l := &leastTable{
			hashes: hashes, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
			base: time.Now(), interval: int64(cfg.Interval), tolerance: int64(cfg.Interval) * cfg.Burst,
		}
		blocks := int(perID*float64(cfg.IDs))/blockSize + 8
		var err error
		l.mapping, err = syscall.Mmap(-1, 0, blocks*blockSize+hugePage, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return nil, err
		}
		_ = syscall.Madvise(l.mapping, syscall.MADV_HUGEPAGE) // an error leaves small pages
		aligned := unsafe.Pointer(&l.mapping[-uintptr(unsafe.Pointer(&l.mapping[0]))%hugePage])
		l.blocks = unsafe.Slice((*[blockLen]uint64)(aligned), blocks)
		if group {
			return leastEach{l}, nil
		}
		return l, nil
	}
}

type leastTable struct {
	blocks              [][blockLen]uint64
	seeds               [2]maphash.Seed
	base                time.Time
	interval, tolerance int64
	hashes              bool
	mapping             []byte
}

func (l *leastTable) home(hash uint64) int {
	home, _ := bits.Mul64(hash, uint64(len(l.blocks)))
	return int(home)
}

func (l *leastTable) fetch(id string) (hash uint64) {
	hash = maphash.String(l.seeds[0], id)
	prefetch(&l.blocks[l.home(hash)])
	return hash
}

func (l *leastTable) find(id string, hash uint64) *uint64 {
	if l.hashes {
		return l.findHashes(hash, maphash.String(l.seeds[1], id))
	}
	return l.findID(id, hash)
}

func (l *leastTable) findID(id string, hash uint64) (tat *uint64) {
	raw := (*[idLen]byte)(unsafe.Pointer(unsafe.StringData(id)))
	read := binary.LittleEndian.Uint64
	a, b, c := read(raw[:]), read(raw[8:]), read(raw[16:])
	for home := l.home(hash); ; home = (home + 1) % len(l.blocks) {
		block := &l.blocks[home]
		for i := 0; i < blockLen; i += 4 {
			if block[i+1] == 0 {
				block[i+1], block[i+2], block[i+3] = a, b, c
			}
			if block[i+1] == a && block[i+2] == b && block[i+3] == c {
				return &block[i]
			}
		}
	}
}

func (l *leastTable) findHashes(a, b uint64) (tat *uint64) {
	for home := l.home(a); ; home = (home + 1) % len(l.blocks) {
		block := &l.blocks[home]
		for i := 0; i < blockLen-1; i += 3 {
			if block[i+1] == 0 {
				block[i+1], block[i+2] = a, b
			}
			if block[i+1] == a && block[i+2] == b {
				return &block[i]
			}
		}
	}
}

func (l *leastTable) spend(tat *uint64, now int64) bool {
	for {
		was := atomic.LoadUint64(tat)
		next := max(int64(was), now) + l.interval
		if next-now > l.tolerance {
			return false
		}
		if atomic.CompareAndSwapUint64(tat, was, uint64(next)) {
			return true
		}
	}
}

func (l *leastTable) Allow(id string) bool {
	hash := l.fetch(id)
	now := int64(time.Since(l.base))
	return l.spend(l.find(id, hash), now)
}

func (l *leastTable) Close() error { return syscall.Munmap(l.mapping) }

type leastEach struct{ *leastTable }

func (l leastEach) Group() (ids, decisions int) { return each, each }

func (l leastEach) AllowGroup(ids []string) (allowed int) {
	var hashes [each]uint64
	now := int64(time.Since(l.base))
	for i, id := range ids {
		hashes[i] = l.fetch(id)
	}
	for i, id := range ids {
		if l.spend(l.find(id, hashes[i]), now) {
			allowed++
		}
	}
	return allowed
}

//go:noescape
func prefetch(block *[blockLen]uint64)
