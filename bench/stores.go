package main

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dgraph-io/badger/v4"
	"github.com/mattn/go-sqlite3"
)

// Embedded stores are no limiters. Each gets a limiter as programs write it:
// GCRA with a transaction per decision.

var (
	sqliteFull   = Contestant{"SQLite FULL", true, "WAL, synchronous=FULL; an upsert per decision", openSQLite("FULL")}
	sqliteNormal = Contestant{"SQLite NORMAL", true, "WAL, synchronous=NORMAL; an upsert per decision",
		openSQLite("NORMAL")}
	pebbleSync = Contestant{"Pebble sync", true, "get, then set with Sync, under a lock of the id",
		openPebble(pebble.Sync)}
	pebbleNoSync = Contestant{"Pebble no sync", true, "get, then set with NoSync, under a lock of the id",
		openPebble(pebble.NoSync)}
	badgerSync = Contestant{"Badger sync", true, "SyncWrites; get and set in a transaction, under a lock of the id",
		openBadger(true)}
	badgerNoSync = Contestant{"Badger no sync", true, "get and set in a transaction, under a lock of the id",
		openBadger(false)}
)

// gcra is the arithmetic.
type gcra struct{ interval, tolerance int64 }

func newGCRA(cfg Config) gcra {
	return gcra{int64(cfg.Interval), cfg.Burst * int64(cfg.Interval)}
}

// spend returns the TAT after a token is taken, and whether the limit allows it.
func (g gcra) spend(tat, now int64) (int64, bool) {
	tat = max(tat, now) + g.interval
	return tat, tat <= now+g.tolerance
}

// stripes lock ids.
type stripes struct {
	seed maphash.Seed
	mu   [4096]sync.Mutex
}

func (s *stripes) of(id string) *sync.Mutex {
	return &s.mu[maphash.String(s.seed, id)%uint64(len(s.mu))]
}

func openSQLite(synchronous string) func(Config) (Decider, error) {
	return func(cfg Config) (Decider, error) {
		db, err := sql.Open("sqlite3", filepath.Join(cfg.Dir,
			"sqlite.db")+"?_journal_mode=WAL&_cache_size=-262144&_synchronous="+synchronous)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(1) // it has one writer; more connections only meet SQLITE_BUSY
		if _, err := db.Exec(`CREATE TABLE bucket (id TEXT PRIMARY KEY, tat INTEGER NOT NULL) WITHOUT ROWID`); err != nil {
			if version, _, _ := sqlite3.Version(); version == "" {
				err = fmt.Errorf("%w: built without cgo: %w", errSkip, err)
			}
			return nil, err
		}
		spend, err := db.Prepare(`INSERT INTO bucket VALUES (?1, ?2 + ?3) ON CONFLICT (id) DO UPDATE
			SET tat = max(tat, ?2) + ?3 WHERE max(tat, ?2) + ?3 <= ?2 + ?4`)
		return &sqliteDecider{newGCRA(cfg), db, spend}, err
	}
}

type sqliteDecider struct {
	gcra
	db    *sql.DB
	spend *sql.Stmt
}

func (d *sqliteDecider) Fill(w Workload) error {
	tx, err := d.db.Begin()
	if err != nil {
		return err
	}
	put := tx.Stmt(d.spend)
	now := time.Now().UnixNano()
	ids := make([]string, w.IDs)
	for i := range ids {
		ids[i] = id(uint32(i))
	}
	slices.Sort(ids) // in the order of the pages
	for _, id := range ids {
		if _, err := put.Exec(id, now, d.interval, d.tolerance); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (d *sqliteDecider) Allow(id string) bool {
	r, err := d.spend.Exec(id, time.Now().UnixNano(), d.interval, d.tolerance)
	must(err)
	n, err := r.RowsAffected()
	must(err)
	return n == 1
}

func (d *sqliteDecider) Close() error { return errors.Join(d.spend.Close(), d.db.Close()) }

func openPebble(sync *pebble.WriteOptions) func(Config) (Decider, error) {
	return func(cfg Config) (Decider, error) {
		db, err := pebble.Open(filepath.Join(cfg.Dir, "pebble"), &pebble.Options{
			MemTableSize: 64 << 20, Logger: quiet{},
		})
		return &pebbleDecider{newGCRA(cfg), stripes{seed: maphash.MakeSeed()}, db, sync}, err
	}
}

type pebbleDecider struct {
	gcra
	stripes
	db   *pebble.DB
	sync *pebble.WriteOptions
}

func (d *pebbleDecider) Fill(w Workload) error {
	tat := time.Now().UnixNano() + d.interval
	for i := 0; i < w.IDs; {
		b := d.db.NewBatch()
		for range min(10_000, w.IDs-i) {
			must(b.Set([]byte(id(uint32(i))), binary.BigEndian.AppendUint64(nil, uint64(tat)), nil))
			i++
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			return err
		}
	}
	return d.db.Flush()
}

func (d *pebbleDecider) Allow(id string) bool {
	mu := d.of(id)
	mu.Lock()
	defer mu.Unlock()
	var tat int64
	v, closer, err := d.db.Get([]byte(id))
	if err == nil {
		tat = int64(binary.BigEndian.Uint64(v))
		err = closer.Close()
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		must(err)
	}
	tat, ok := d.gcra.spend(tat, time.Now().UnixNano())
	if ok {
		must(d.db.Set([]byte(id), binary.BigEndian.AppendUint64(nil, uint64(tat)), d.sync))
	}
	return ok
}

func (d *pebbleDecider) Close() error { return d.db.Close() }

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func openBadger(sync bool) func(Config) (Decider, error) {
	return func(cfg Config) (Decider, error) {
		db, err := badger.Open(badger.DefaultOptions(filepath.Join(cfg.Dir, "badger")).
			WithLogger(nil).WithSyncWrites(sync).WithDetectConflicts(false)) // the locks prevent them
		return &badgerDecider{newGCRA(cfg), stripes{seed: maphash.MakeSeed()}, db}, err
	}
}

type badgerDecider struct {
	gcra
	stripes
	db *badger.DB
}

func (d *badgerDecider) Fill(w Workload) error {
	tat := time.Now().UnixNano() + d.interval
	b := d.db.NewWriteBatch()
	for i := range w.IDs {
		if err := b.Set([]byte(id(uint32(i))), binary.BigEndian.AppendUint64(nil, uint64(tat))); err != nil {
			return err
		}
	}
	return b.Flush()
}

func (d *badgerDecider) Allow(id string) (ok bool) {
	mu := d.of(id)
	mu.Lock()
	defer mu.Unlock()
	must(d.db.Update(func(tx *badger.Txn) error {
		var tat int64
		item, err := tx.Get([]byte(id))
		if err == nil {
			err = item.Value(func(v []byte) error {
				tat = int64(binary.BigEndian.Uint64(v))
				return nil
			})
		}
		if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
		if tat, ok = d.gcra.spend(tat, time.Now().UnixNano()); !ok {
			return nil
		}
		return tx.Set([]byte(id), binary.BigEndian.AppendUint64(nil, uint64(tat)))
	}))
	return ok
}

func (d *badgerDecider) Close() error { return d.db.Close() }
