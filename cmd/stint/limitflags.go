package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/source"
	"github.com/stint-go/stint/limitsfile"
)

// defaultLabel is the label of the limit that --limit gives.
const defaultLabel = "default"

type limitFlags struct {
	limit     string
	burst     int64
	file      string
	overrides []string
	name      string

	cmd      *cobra.Command
	required bool
	also     []stint.NameSpec  // limits of other flags
	piped    map[string][]byte // contents of files such as pipes
}

func (f *limitFlags) register(cmd *cobra.Command, required bool) {
	f.required = required
	flags := cmd.Flags()
	flags.StringVar(&f.limit, "limit", "", "a limit, as `COUNT/PERIOD`: 5/1m, or '5/1m burst 20'")
	flags.Int64Var(&f.burst, "burst", 0, "burst of --limit (default its count)")
	f.registerFiles(cmd, "a YAML `FILE` of limits")
	flags.StringVar(&f.name, "name", "", "the `LABEL` of the limit (default \""+defaultLabel+"\" with --limit)")
}

func (f *limitFlags) registerFiles(cmd *cobra.Command, usage string) {
	f.cmd = cmd
	cmd.Flags().StringVar(&f.file, "limits", "", usage)
	cmd.Flags().StringArrayVar(&f.overrides, "overrides", nil, "a YAML `FILE` of overrides to --limits; may be repeated")
	_ = cmd.MarkFlagFilename("limits", "yml", "yaml")
	_ = cmd.MarkFlagFilename("overrides", "yml", "yaml")
}

func (f *limitFlags) label() string { return cmp.Or(f.name, defaultLabel) }

// resolve returns the limit that the flags give for an id, if there is one.
func (f *limitFlags) resolve(id string) (limit stint.Limit, ok bool, err error) {
	limits, numbers, err := f.load(counter())
	if err != nil {
		return stint.Limit{}, false, err
	}
	name, err := f.among(numbers)
	if err != nil {
		return stint.Limit{}, false, err
	}
	limit = limits.For(name.Key(id))
	return limit, limit != stint.Unlimited, nil
}

// among returns the number of the label that the flags name.
func (f *limitFlags) among(numbers map[string]stint.Name) (stint.Name, error) {
	if f.file != "" && f.name == "" {
		return 0, fmt.Errorf("--limits needs --name: %s has %s", f.file, source.Labels(maps.Keys(numbers)))
	}
	name, ok := numbers[f.label()]
	if !ok {
		return 0, fmt.Errorf("%s has no limit %q: it has %s", f.file, f.name, source.Labels(maps.Keys(numbers)))
	}
	return name, nil
}

// load returns the limits that the flags give, and the number of each label.
func (f *limitFlags) load(number func(label string) (stint.Name, error)) (*stint.Limits, map[string]stint.Name, error) {
	if err := f.misused(); err != nil {
		return nil, nil, err
	}
	specs := []stint.NameSpec{{Label: f.label(), Limit: stint.Unlimited}}
	var files []string
	switch {
	case f.file != "":
		var remove func()
		var err error
		files, remove, err = f.files()
		defer remove()
		if err != nil {
			return nil, nil, err
		}
		labels, err := limitsfile.Labels(files...)
		if err != nil {
			return nil, nil, f.named(err, files)
		}
		specs = nil
		for _, label := range labels {
			specs = append(specs, stint.NameSpec{Label: label, Limit: stint.Unlimited})
		}
	case f.limit != "":
		var err error
		if specs[0].Limit, err = f.parse(); err != nil {
			return nil, nil, err
		}
	}
	numbers, names := map[string]stint.Name{}, stint.Names{}
	for _, spec := range append(specs, f.also...) {
		if _, twice := numbers[spec.Label]; twice {
			continue
		}
		name, err := number(spec.Label)
		if err != nil {
			return nil, nil, err
		}
		numbers[spec.Label], names[name] = name, spec
	}
	if f.file != "" {
		limits, err := limitsfile.Load(names, files[0], files[1:]...)
		return limits, numbers, f.named(err, files)
	}
	limits, err := stint.NewLimits(names)
	return limits, numbers, err
}

// files returns the limits files. If a file can be read only once, such as a
// pipe, it returns a copy, which remove deletes.
func (f *limitFlags) files() (files []string, remove func(), err error) {
	var copies []string
	remove = func() {
		for _, file := range copies {
			os.Remove(file)
		}
	}
	for _, file := range append([]string{f.file}, f.overrides...) {
		info, err := os.Stat(file)
		if err != nil || info.Mode().IsRegular() || info.IsDir() { // Load reports what is wrong
			files = append(files, file)
			continue
		}
		text, ok := f.piped[file]
		if !ok {
			if text, err = os.ReadFile(file); err != nil {
				return nil, remove, err
			}
			if f.piped == nil {
				f.piped = map[string][]byte{}
			}
			f.piped[file] = text
		}
		temp, err := source.TempFile("stint-limits-*.yml")
		if err != nil {
			return nil, remove, err
		}
		files, copies = append(files, temp.Name()), append(copies, temp.Name())
		_, err = temp.Write(text)
		if err = errors.Join(err, temp.Close()); err != nil {
			return nil, remove, console.Failed(err)
		}
	}
	return files, remove, nil
}

// named returns err with the names that the user gave the files.
func (f *limitFlags) named(err error, files []string) error {
	if err == nil || f.piped == nil {
		return err
	}
	var names []string
	for i, file := range append([]string{f.file}, f.overrides...) {
		names = append(names, files[i], file)
	}
	return errors.New(strings.NewReplacer(names...).Replace(err.Error()))
}

// misused returns an error if a limit is required and missing.
func (f *limitFlags) misused() error {
	if given := f.cmd.Flags().Changed; f.required && !given("limit") && !given("limits") {
		return misuse(f.cmd, "no limit given: --limit COUNT/PERIOD, or --limits FILE and --name LABEL")
	}
	return nil
}

func (f *limitFlags) parse() (stint.Limit, error) {
	limit, err := stint.ParseLimit(f.limit)
	if err == nil && f.cmd.Flags().Changed("burst") {
		if strings.Contains(f.limit, " burst ") {
			return stint.Limit{}, misuse(f.cmd, "--limit %q has a burst: leave out that burst, or --burst", f.limit)
		}
		limit = limit.WithBurst(f.burst)
		if err := limit.Validate(); err != nil {
			return stint.Limit{}, fmt.Errorf("--burst %d: %w", f.burst, err)
		}
	}
	return limit, err
}

// source returns in words where the limit of an id comes from.
func (f *limitFlags) source(label, id string) (string, error) {
	if f.file == "" {
		return "from --limit", nil
	}
	for _, file := range f.overrides {
		one := *f
		one.overrides = []string{file}
		limits, numbers, err := one.load(counter())
		if err != nil {
			return "", err
		}
		for override := range limits.Overrides(numbers[label]) {
			if override.Key.ID == id {
				return strings.TrimSuffix("an override in "+file+": "+override.Comment, ": "), nil
			}
		}
	}
	return "the default in " + f.file, nil
}

// counter numbers labels from 1. A file of buckets may have other numbers for them.
func counter() func(label string) (stint.Name, error) {
	n := 0
	return func(label string) (stint.Name, error) {
		if n++; n > math.MaxUint16 {
			return 0, fmt.Errorf("limit %q: more than %d limits", label, math.MaxUint16)
		}
		return stint.Name(n), nil
	}
}
