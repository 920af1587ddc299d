package stint

import (
	"fmt"
	"io"
	"time"
)

func (s *BoltStore) Maintain(now time.Time) error {
	s.useClock(func() time.Time { return now })
	return s.sweep(now.UnixNano())
}
func (s *BoltStore) Health() error           { return s.ailing() }
func (s *MemStore) Maintain(time.Time) error { return nil }
func (s *MemStore) Declare(Names) error      { return nil }
func (s *MemStore) Health() error            { return nil }
func (s *MemStore) Stats() FileStats         { return FileStats{} }
func (s *MemStore) Snapshot(io.Writer) (int64, error) {
	return 0, fmt.Errorf("stint: a MemStore has no file to copy")
}
