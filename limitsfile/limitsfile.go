// Package limitsfile reads limits from YAML, in the format of Boulder's rate
// limits.
//
// A file of defaults is a mapping of labels to limits, or {} for none. A file of
// overrides is a list of such mappings, or empty. The keys of a limit are:
//
//	burst       tokens in a full bucket, at least 1; an empty bucket must refill within 100 years
//	count       tokens that return in a period, at least 1 and at most 1 per nanosecond
//	period      such as 180m, 2w or 1w2d12h: weeks, days of 24 hours, then a Go duration
//	quota       tokens for each period of the calendar, instead of burst, count and period
//	resets      hourly, daily, weekly (on Mondays), monthly or yearly; with quota
//	zone        such as Europe/Berlin or +02:00; the default is UTC; with quota
//	day-starts  such as 4h, if days, and so months, begin at four; with quota
//	hour-starts such as 15m, with a quota that resets hourly
//	durability  memory, flushed, leased or synced; optional
//	queue       the most tokens that may queue, 0 for no bound; optional
//	unlimited   true, alone or with ids: stint.Unlimited
//	blocked     true, alone or with ids: stint.Blocked
//	ids         of an override: a list of ids, or of mappings with an id and an optional comment
//
// A list of overrides may also have groups. A group is a list of ids with
// several limits in common, such as those of a plan. It has a name, which
// appears only in error texts, and limits without ids of their own:
//
//	# overrides.yml
//	- group: pro
//	  ids: [key-1, {id: key-2, comment: until March}]
//	  limits:
//	    PerMinute: {burst: 100, count: 100, period: 1m}
//	    PerDay: {unlimited: true}
//
// An id may be in several groups, as long as these share no label.
//
// An override takes nothing from the default of its label. If it names no
// durability, its level is Options.Durability, even if the default is leased.
//
// Boulder can read a file unless the file uses what only stint has: groups, the
// keys quota, resets, zone, day-starts, hour-starts, durability, queue,
// unlimited and blocked, days and weeks in a period, and ids that are not
// mappings.
//
// A limit that the files do not configure is off, even if its stint.NameSpec
// has a Limit. All mistakes are reported together, each with its file and line.
// Mistakes include labels that the program does not declare, unknown keys, and ids
// that do not have the declared format.
package limitsfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
)

// Load returns the limits in a file of defaults and files of overrides, or a
// *stint.ConfigError for each mistake in any of them, joined.
func Load(names stint.Names, defaultsFile string, overrideFiles ...string) (*stint.Limits, error) {
	return read(names, files(defaultsFile), files(overrideFiles...))
}

// LoadOverrides is Load without defaults: only the ids in files of overrides have
// limits.
func LoadOverrides(names stint.Names, overrideFiles ...string) (*stint.Limits, error) {
	return read(names, []source{{"", []byte("{}"), nil}}, files(overrideFiles...))
}

func files(names ...string) []source {
	sources := make([]source, len(names))
	for i, name := range names {
		data, err := os.ReadFile(name)
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err // ConfigError names the file
		}
		sources[i] = source{name, data, err}
	}
	return sources
}

// Parse is Load for texts in memory. A ConfigError calls them "defaults",
// "overrides", "overrides 2" and so on.
func Parse(names stint.Names, defaults []byte, overrides ...[]byte) (*stint.Limits, error) {
	var sources []source
	for i, data := range overrides {
		file := "overrides"
		if i > 0 {
			file = fmt.Sprint("overrides ", i+1)
		}
		sources = append(sources, source{file, data, nil})
	}
	return read(names, []source{{"defaults", defaults, nil}}, sources)
}

// source is a file that was read, or the error of reading it.
type source struct {
	file string
	data []byte
	err  error
}

// read returns the limits in sources of defaults and of overrides.
func read(names stint.Names, defaults, overrides []source) (*stint.Limits, error) {
	r := newReader(names)
	_, err := stint.NewLimits(names.WithLimits(r.defaults))
	if err != nil { // wrong declarations of names
		return nil, err
	}
	for _, s := range defaults {
		r.read(s, r.readDefaults)
	}
	for _, s := range overrides {
		r.read(s, r.readOverrides)
	}
	return r.finish()
}

// finish returns the limits, or the mistakes of all files.
func (r *reader) finish() (*stint.Limits, error) {
	limits, err := stint.NewLimits(r.names.WithLimits(r.defaults), r.overrides...)
	if r.all != nil {
		return nil, errors.Join(r.all...)
	}
	return limits, err
}

// Labels returns the labels in files of defaults and of overrides, each once and in
// the order of their first appearance.
//
// A program whose limits are named at run time declares these labels, and then
// calls Load. Labels skips text in another format, because Load reports it.
func Labels(files ...string) ([]string, error) {
	r := newReader(nil) // to which all labels are unknown
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r.read(source{file, text, nil}, func(root *yaml.Node) {
			if root.Kind == yaml.SequenceNode {
				r.readOverrides(root)
			} else {
				r.readDefaults(root)
			}
		})
	}
	var labels []string
	seen := map[string]bool{"": true} // no label
	for _, label := range r.unknown {
		if !seen[label] {
			seen[label] = true
			labels = append(labels, label)
		}
	}
	return labels, nil
}

// joined returns the errors that an error joins.
func joined(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return nil
}
