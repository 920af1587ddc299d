package stint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// LoadLimits reads the limits of a program from a file of defaults, and files of overrides. What is wrong in any of them
// is returned all at once, as ConfigErrors with file and line, joined.
//
// A file of defaults is a YAML mapping of labels to limits, {} for none; one of overrides is a list of such mappings, or empty.
// The keys of a limit are:
//
//	burst       tokens in a full bucket, an integer from 1; it refills within 100 years
//	count       tokens that come back in a period, an integer from 1, at most one for each nanosecond of it
//	period      such as 180m, 2w or 1w2d12h: weeks, days of 24 hours, then a Go duration in h, m, s, ms, us and ns
//	durability  memory, flushed, leased or synced; optional
//	queue       the most tokens that may wait in line, 0 for no bound; optional
//	ids         of an override: a list of ids, or of mappings with an id and, optional, a comment
func LoadLimits(names Names, defaultsFile string, overrideFiles ...string) (*Limits, error) {
	sources := make([]source, 1+len(overrideFiles))
	for i, name := range append([]string{defaultsFile}, overrideFiles...) {
		data, err := os.ReadFile(name)
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err // ConfigError names the file
		}
		sources[i] = source{name, data, err}
	}
	return readLimits(names, sources[0], sources[1:])
}

// ParseLimits is LoadLimits of what the files hold. ConfigErrors call them "defaults", "overrides", "overrides 2" and so
// on.
func ParseLimits(names Names, defaults []byte, overrides ...[]byte) (*Limits, error) {
	sources := make([]source, len(overrides))
	for i, data := range overrides {
		sources[i] = source{"overrides", data, nil}
		if i > 0 {
			sources[i].file = fmt.Sprint("overrides ", i+1)
		}
	}
	return readLimits(names, source{"defaults", defaults, nil}, sources)
}

type source struct {
	file string
	data []byte
	err  error
}

func readLimits(names Names, defaults source, overrides []source) (*Limits, error) {
	if errs := names.mistakes(); errs != nil {
		return nil, joinErrors(errs)
	}
	r := limitsReader{
		names:     names,
		labels:    make(map[string]Name),
		defaults:  make(map[Name]Limit),
		overrides: make(map[Name][]Override),
		ids:       make(map[Key]idPlace),
	}
	for name, spec := range names {
		r.labels[spec.Label] = name
	}
	r.read(defaults, r.readDefaults)
	for _, s := range overrides {
		r.read(s, r.readOverrides)
	}
	if r.errs != nil {
		return nil, joinErrors(r.errs)
	}
	return NewLimits(names, r.defaults, r.overrides)
}

// limitsReader collects limits, and the mistakes in them, from one file after the other; after a mistake, the limits are
// of no use. It walks the YAML nodes itself: the decoder knows neither all of the mistakes nor their lines.
type limitsReader struct {
	names     Names
	labels    map[string]Name
	defaults  map[Name]Limit
	overrides map[Name][]Override
	ids       map[Key]idPlace // of the overrides so far

	file string
	errs []*ConfigError
}

type idPlace struct {
	file     string
	line     int
	spelling string
}

func (r *limitsReader) read(s source, walk func(root *yaml.Node)) {
	r.file = s.file
	if s.err != nil {
		r.fail(0, "", s.err)
		return
	}
	before := len(r.errs)
	dec := yaml.NewDecoder(bytes.NewReader(s.data))
	var doc, next yaml.Node
	root := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	switch err := dec.Decode(&doc); {
	case err == nil:
		root = doc.Content[0]
		if err := dec.Decode(&next); err == nil {
			r.fail(next.Line, "", errors.New("a second document starts here: want one to a file"))
		} else if err != io.EOF {
			r.failSyntax(err)
		}
	case err != io.EOF:
		r.failSyntax(err)
		return
	}
	r.refuseAnchors(root)
	walk(root)
	slices.SortStableFunc(r.errs[before:], func(x, y *ConfigError) int { return x.Line - y.Line })
}

func (r *limitsReader) readDefaults(root *yaml.Node) {
	switch {
	case root.Tag == "!!null":
		r.fail(0, "", errors.New("no limits: want {} where every limit is to be off"))
		return
	case root.Kind != yaml.MappingNode:
		r.failNode(root, "", "the file is %s, want a mapping of labels to limits", describe(root))
		return
	}
	for label, node := range r.fields(root, "") {
		name, declared := r.name(label)
		l, _ := r.limit(label, node, false)
		if declared {
			r.defaults[name] = l
		}
	}
}

func (r *limitsReader) readOverrides(root *yaml.Node) {
	switch {
	case root.Tag == "!!null":
		return
	case root.Kind != yaml.SequenceNode:
		r.failNode(root, "", "the file is %s, want a list of overrides", describe(root))
		return
	}
	for _, entry := range root.Content {
		if entry.Kind != yaml.MappingNode || len(entry.Content) == 0 {
			r.failNode(entry, "", "the override is %s, want a mapping of a label to a limit with ids", describe(entry))
			continue
		}
		for label, node := range r.fields(entry, "") {
			name, declared := r.name(label)
			l, ids := r.limit(label, node, true)
			if declared && ids != nil {
				r.overrides[name] = append(r.overrides[name], Override{r.readIDs(name, label.Value, ids), l})
			}
		}
	}
}

func (r *limitsReader) name(label *yaml.Node) (name Name, declared bool) {
	name, declared = r.labels[label.Value]
	if !declared {
		r.fail(label.Line, label.Value, fmt.Errorf("%w: the program declares no limit with this label", ErrUnknownName))
	}
	return name, declared
}

// limit reads the limit under a label and, of an override, returns the node of its ids; nil where there is none.
func (r *limitsReader) limit(label, node *yaml.Node, override bool) (l Limit, ids *yaml.Node) {
	required, optional := []string{"burst", "count", "period"}, []string{"durability", "queue"}
	if override {
		required = append(required, "ids")
	}
	if node.Kind != yaml.MappingNode {
		r.failNode(node, label.Value, "the limit is %s, want a mapping with %s", describe(node), list(required))
		return Limit{}, nil
	}
	given := make(map[string]*yaml.Node) // nil where the value is no good
	for key, value := range r.fields(node, label.Value) {
		var err error
		want := wantInteger
		switch field := key.Value; {
		case field == "burst":
			l.Burst, err = integer(value)
		case field == "count":
			l.Count, err = integer(value)
		case field == "period":
			l.Period, err = parsePeriod(value.Value)
			want = wantPeriod
		case field == "durability":
			l.Durability, err = ParseDurability(value.Value)
			want = wantDurability
		case field == "queue":
			l.Queue, err = integer(value)
		case field == "ids" && override:
			ids = value
		default:
			r.failNode(key, label.Value, "unknown key %s, want %s", quote(field), list(append(required, optional...)))
			continue
		}
		given[key.Value] = value
		if err != nil {
			given[key.Value] = nil
			r.failNode(value, label.Value, "%w", &fieldError{key.Value, describe(value), want})
		}
	}
	for _, field := range required {
		if _, ok := given[field]; !ok {
			r.fail(label.Line, label.Value, fmt.Errorf("%s is missing", field))
		}
	}
	for _, wrong := range l.mistakes() {
		if value := given[wrong.field]; value != nil {
			r.fail(value.Line, label.Value, wrong)
		}
	}
	return l, ids
}

func (r *limitsReader) readIDs(name Name, label string, node *yaml.Node) (ids []OverrideID) {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		r.failNode(node, label, "ids is %s, want a list of ids", describe(node))
		return nil
	}
	for _, item := range node.Content {
		id, comment := item, ""
		if item.Kind == yaml.MappingNode {
			id, comment = r.commentedID(label, item)
		}
		switch {
		case id == nil:
			continue
		case id.Kind != yaml.ScalarNode || id.Tag == "!!null":
			r.failNode(id, label, "the id is %s, want a scalar, or a mapping with id and comment", describe(id))
			continue
		}
		canonical, err := r.names.overrideID(name, id.Value)
		if err != nil {
			r.failNode(id, label, "%w", err)
			continue
		}
		key := Key{name, canonical}
		if first, twice := r.ids[key]; twice {
			r.failNode(id, label, "the id %s is given twice, first %s", quote(id.Value), r.where(first, id.Value))
			continue
		}
		r.ids[key] = idPlace{r.file, id.Line, id.Value}
		ids = append(ids, OverrideID{canonical, comment})
	}
	return ids
}

// commentedID reads an id that is written as a mapping; nil where it has none.
func (r *limitsReader) commentedID(label string, node *yaml.Node) (id *yaml.Node, comment string) {
	for key, value := range r.fields(node, label) {
		switch key.Value {
		case "id":
			id = value
		case "comment":
			comment = value.Value
			if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
				r.failNode(value, label, "%w", &fieldError{"comment", describe(value), "text"})
			}
		default:
			r.failNode(key, label, "unknown key %s, want id and comment", quote(key.Value))
		}
	}
	if id == nil {
		r.fail(node.Line, label, errors.New("id is missing"))
	}
	return id, comment
}

// fields are the keys and values of a mapping, without those that are wrong in themselves.
func (r *limitsReader) fields(node *yaml.Node, label string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		lines := make(map[string]int)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			first, twice := lines[key.Value]
			switch {
			case key.Tag == "!!merge":
				r.failNode(key, label, "merge keys (<<) are not for limits files")
			case key.Kind != yaml.ScalarNode || key.Tag == "!!null":
				r.failNode(key, label, "the key is %s, want a word", describe(key))
			case twice:
				r.failNode(key, label, "%s is given twice, first in line %d", quote(key.Value), first)
			default:
				lines[key.Value] = key.Line
				if !yield(key, value) {
					return
				}
			}
		}
	}
}

// refuseAnchors reports what makes a file mean other than what is written at the place: anchors, aliases and tags.
func (r *limitsReader) refuseAnchors(node *yaml.Node) {
	switch {
	case node.Kind == yaml.AliasNode:
		r.fail(node.Line, "", fmt.Errorf("aliases (*%s) are not for limits files", node.Value))
	case node.Anchor != "":
		r.fail(node.Line, "", fmt.Errorf("anchors (&%s) are not for limits files", node.Anchor))
	case node.Style&yaml.TaggedStyle != 0:
		r.fail(node.Line, "", fmt.Errorf("tags (%s) are not for limits files", node.Tag))
	}
	for _, child := range node.Content {
		r.refuseAnchors(child)
	}
}

func (r *limitsReader) fail(line int, label string, err error) {
	r.errs = append(r.errs, &ConfigError{File: r.file, Line: line, Label: label, Err: err})
}

// failNode reports a node that is not what it should be, unless refuseAnchors did.
func (r *limitsReader) failNode(node *yaml.Node, label, format string, args ...any) {
	if node.Kind != yaml.AliasNode && node.Style&yaml.TaggedStyle == 0 {
		r.fail(node.Line, label, fmt.Errorf(format, args...))
	}
}

// failSyntax reports what the YAML parser says, which has the line in its text.
func (r *limitsReader) failSyntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, after, ok := strings.Cut(rest, ": "); ok {
			line, _ = strconv.Atoi(number)
			text = after
		}
	}
	r.fail(line, "", errors.New("not YAML: "+text))
}

// where returns the place of an id, and how it is written there if not as here.
func (r *limitsReader) where(p idPlace, here string) string {
	place := fmt.Sprint("in line ", p.line)
	if p.file != r.file {
		place = fmt.Sprintf("at %s:%d", p.file, p.line)
	}
	if p.spelling != here {
		place += " as " + quote(p.spelling)
	}
	return place
}

func integer(node *yaml.Node) (int64, error) {
	if node.Tag != "!!int" { // "20" is a string
		return 0, errors.New("not an integer")
	}
	return parseInt(node.Value)
}

// describe returns what a node is, for an error that says what it should have been.
func describe(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode && len(node.Content) > 0:
		return "a mapping"
	case node.Kind == yaml.SequenceNode && len(node.Content) > 0:
		return "a list"
	case node.Kind != yaml.ScalarNode || node.Tag == "!!null":
		return "empty"
	}
	return quote(node.Value)
}

func list(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// Labels returns the labels that limits files name, defaults and overrides, each once and in the order they first
// appear in. It is for programs whose limits are named at run time: they declare the labels, and then call LoadLimits,
// which says what else is wrong with the files; what is not a limits file, or not YAML, has no labels here.
func Labels(files ...string) ([]string, error) {
	var labels []string
	seen := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var root yaml.Node
		if yaml.Unmarshal(text, &root) != nil || len(root.Content) != 1 {
			continue
		}
		maps := root.Content // of labels: one in a defaults file, in an overrides file one per entry
		if maps[0].Kind == yaml.SequenceNode {
			maps = maps[0].Content
		}
		for _, m := range maps {
			if m.Kind != yaml.MappingNode {
				continue
			}
			for i := 0; i < len(m.Content); i += 2 {
				if label := m.Content[i]; label.Kind == yaml.ScalarNode && label.Value != "" && !seen[label.Value] {
					seen[label.Value] = true
					labels = append(labels, label.Value)
				}
			}
		}
	}
	return labels, nil
}
