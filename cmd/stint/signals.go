package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

// untilInterrupted returns the command's context, which also ends at a signal.
func untilInterrupted(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), heeded([]os.Signal{os.Interrupt, syscall.SIGTERM})...)
}

// heeded returns the signals that the process does not ignore from its start.
// nohup ignores HUP, and a script ignores INT for its background jobs.
func heeded(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

// interruption returns errInterrupted after the context has ended.
func interruption(ctx context.Context) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return nil
}
