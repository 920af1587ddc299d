package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/wholefile"
)

func registerOutput(cmd *cobra.Command, out *console.Output) {
	cmd.Flags().BoolVar(&out.JSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&out.Quiet, "quiet", false, "print errors only; the exit status shows a denial")
}

// registerJSON is registerOutput for a command that prints one object, and has no
// use for --quiet.
func registerJSON(cmd *cobra.Command, out *console.Output) {
	cmd.Flags().BoolVar(&out.JSON, "json", false, "print one JSON object")
}

// chartFlags are those of a command that can draw its result.
type chartFlags struct {
	console.Output
	svg string
}

func (f *chartFlags) register(cmd *cobra.Command) {
	registerJSON(cmd, &f.Output)
	cmd.Flags().StringVar(&f.svg, "svg", "",
		"also write a chart as SVG to a `FILE`; - for standard output instead of the text")
	_ = cmd.MarkFlagFilename("svg", "svg")
}

func (f *chartFlags) misused(cmd *cobra.Command) error {
	if f.svg == "-" && f.JSON {
		return misuse(cmd, "--svg - and --json exclude each other: both take standard output")
	}
	if _, err := os.Stat(filepath.Dir(f.svg)); err != nil {
		return console.Failed(fmt.Errorf("--svg %s: %w", f.svg, err))
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
		return console.Failed(err)
	default:
		if err := wholefile.Replace(f.svg, svg()); err != nil {
			return console.Failed(err)
		}
	}
	return f.Print(w, asJSON, console.Folded(w, text(console.Columns(w))))
}
