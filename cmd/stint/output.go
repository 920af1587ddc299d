package main

import (
	"github.com/spf13/cobra"
)

type outputFlags struct {
	json, quiet bool
}

func (f *outputFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "print errors only; the exit status shows a denial")
}

func (f *outputFlags) misused(cmd *cobra.Command) error { return exclusive(cmd, "json", "quiet") }
