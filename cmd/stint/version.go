package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"
)

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
	out := &console.Output{}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of stint",
		Long:  `Print the version of stint, the revision that it was built from, and the version of Go.`,
		Example: `  stint version
  stint version --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			text := fmt.Sprintf("version   %s\n", b.Version)
			if b.Revision != "" {
				text += fmt.Sprintf("revision  %s of %s", b.Revision, b.Time)
				if b.Modified {
					text += ", and modified since"
				}
				text += "\n"
			}
			return out.Print(cmd.OutOrStdout(), b, text+fmt.Sprintf("built by  %s for %s\n", b.Go, b.Platform))
		},
	}
	registerJSON(cmd, out)
	return cmd
}
