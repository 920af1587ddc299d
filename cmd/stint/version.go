package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/display"
)

// build describes the build of the program.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of version control, if known
	Modified bool   `json:"modified,omitempty"` // since that revision
	Time     string `json:"time,omitempty"`     // of the revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newBuild(info *debug.BuildInfo) build {
	b := build{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "vcs.time":
			b.Time = s.Value
		}
	}
	return b
}

func thisBuild() build {
	info, _ := debug.ReadBuildInfo()
	return newBuild(info)
}

// String returns the build in one line.
func (b build) String() string {
	s := b.Version
	if b.Revision != "" {
		s += " " + b.Revision
	}
	if b.Modified {
		s += " modified"
	}
	return s + " " + b.Go
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of stint",
		Long:  `Print the version of stint, the revision that it was built from, and the version of Go.`,
		Example: `  stint version
  stint version --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			if asJSON {
				return failed(display.WriteJSON(cmd.OutOrStdout(), b))
			}
			var out strings.Builder
			fmt.Fprintf(&out, "version   %s\n", b.Version)
			if b.Revision != "" {
				modified := ""
				if b.Modified {
					modified = ", and modified since"
				}
				fmt.Fprintf(&out, "revision  %s of %s%s\n", b.Revision, b.Time, modified)
			}
			fmt.Fprintf(&out, "built by  %s for %s\n", b.Go, b.Platform)
			_, err := fmt.Fprint(cmd.OutOrStdout(), out.String())
			return failed(err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
