package redislimit

// begin starts a goroutine that Close waits for. If the Limiter is closed,
// begin returns false instead.
func (l *Limiter) begin(f func()) bool {
	l.workMu.Lock()
	defer l.workMu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.work.Go(f)
	return true
}
