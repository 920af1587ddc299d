package console

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// UntilInterrupted returns a context that ends with ctx, or at a signal.
func UntilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, Heeded([]os.Signal{os.Interrupt, syscall.SIGTERM})...)
}

// Heeded returns the signals that the process does not ignore from its start.
// nohup ignores HUP, and a script ignores INT for its background jobs.
func Heeded(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

// Interruption returns ErrInterrupted after the context has ended.
func Interruption(ctx context.Context) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return nil
}
