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

// heeded returns those of the signals that the process was not started to ignore, as nohup, or a script for what it runs in the
// background, starts one. TERM is always among them.
func heeded(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

// interruption returns errInterrupted once the context has ended.
func interruption(ctx context.Context) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return nil
}
