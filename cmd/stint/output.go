package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/display"
)

type outputFlags struct {
	json, quiet bool
}

func (f *outputFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "print errors only; the exit status shows a denial")
}

// registerJSON is register for a command that prints one object, and has no use
// for --quiet.
func (f *outputFlags) registerJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *outputFlags) print(cmd *cobra.Command, asJSON any, text string) (err error) {
	switch w := cmd.OutOrStdout(); {
	case f.json:
		err = display.WriteJSON(w, asJSON)
	case !f.quiet:
		_, err = io.WriteString(w, text)
	}
	return failed(err)
}

// chartFlags are those of a command that can draw its result.
type chartFlags struct {
	outputFlags
	svg string
}

func (f *chartFlags) register(cmd *cobra.Command) {
	f.registerJSON(cmd)
	cmd.Flags().StringVar(&f.svg, "svg", "",
		"also write a chart as SVG to a `FILE`; - for standard output instead of the text")
	_ = cmd.MarkFlagFilename("svg", "svg")
}

func (f *chartFlags) misused(cmd *cobra.Command) error {
	if f.svg == "-" && f.json {
		return misuse(cmd, "--svg - and --json exclude each other: both take standard output")
	}
	if _, err := os.Stat(filepath.Dir(f.svg)); err != nil {
		return failed(fmt.Errorf("--svg %s: %w", f.svg, err))
	}
	return nil
}

// print draws the result, and prints it as JSON or as text for a terminal's width.
func (f *chartFlags) print(cmd *cobra.Command, svg func() []byte, asJSON any, text func(width int) string) error {
	w := cmd.OutOrStdout()
	switch f.svg {
	case "":
	case "-":
		_, err := w.Write(svg())
		return failed(err)
	default:
		if err := replaceFile(f.svg, svg()); err != nil {
			return failed(err)
		}
	}
	return f.outputFlags.print(cmd, asJSON, folded(w, text(columns(w))))
}
