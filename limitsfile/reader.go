package limitsfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/spell"
)

// reader collects limits and mistakes from one file after the other. After a
// mistake it returns no limits. It walks the YAML nodes, because a decoder does
// not report all mistakes or their lines.
type reader struct {
	names     stint.Names
	labels    map[string]stint.Name
	defaults  map[stint.Name]stint.Limit
	overrides []stint.Override
	ids       map[stint.Name]map[string]idPlace // ids of the overrides so far
	places    map[stint.Name]idPlace            // first label of each limit
	unknown   []string                          // labels that are not declared

	file string
	errs []*stint.ConfigError // mistakes in this file
	all  []error              // mistakes in earlier files
}

func newReader(names stint.Names) *reader {
	r := &reader{
		names:    names,
		labels:   make(map[string]stint.Name),
		defaults: make(map[stint.Name]stint.Limit),
		ids:      make(map[stint.Name]map[string]idPlace),
		places:   make(map[stint.Name]idPlace),
	}
	for name, spec := range names {
		r.labels[spec.Label] = name
		r.defaults[name] = stint.Unlimited
	}
	return r
}

type idPlace struct {
	file string
	node *yaml.Node
}

type commented struct {
	id      *yaml.Node
	comment string
}

// read reads a file, and adds its mistakes to r.all in the order of their lines.
func (r *reader) read(s source, walk func(root *yaml.Node)) {
	r.file, r.errs = s.file, nil
	if s.err != nil {
		r.fail(0, "", s.err)
	} else {
		r.parse(s.data, walk)
	}
	slices.SortStableFunc(r.errs, func(x, y *stint.ConfigError) int { return x.Line - y.Line })
	for _, err := range r.errs {
		r.all = append(r.all, err)
	}
}

func (r *reader) parse(data []byte, walk func(root *yaml.Node)) {
	text := &lineReader{data: data}
	dec := yaml.NewDecoder(text)
	var doc, next yaml.Node
	root := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	switch err := dec.Decode(&doc); {
	case err == nil:
		root = doc.Content[0]
		if err := dec.Decode(&next); err == nil {
			r.fail(next.Line, "", errors.New("a second document starts here: want one document in a file"))
		} else if err != io.EOF {
			r.failSyntax(err, text)
		}
	case err != io.EOF:
		r.failSyntax(err, text)
		return
	}
	r.refuseAnchors(root)
	walk(root)
}

func (r *reader) readDefaults(root *yaml.Node) {
	switch {
	case root.Tag == "!!null":
		r.fail(0, "", errors.New("no limits: want {} if every limit is off"))
		return
	case root.Kind != yaml.MappingNode:
		r.want(root, "", "the file", "a mapping of labels to limits")
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

func (r *reader) readOverrides(root *yaml.Node) {
	switch {
	case root.Tag == "!!null":
		return
	case root.Kind != yaml.SequenceNode:
		r.want(root, "", "the file", "a list of overrides")
		return
	}
	for _, entry := range root.Content {
		if entry.Kind != yaml.MappingNode || len(entry.Content) == 0 {
			r.want(entry, "", "the override", "a mapping of a label to a limit with ids")
			continue
		}
		if group := groupOf(entry); group != nil {
			r.readGroup(group, entry)
			continue
		}
		for label, node := range r.fields(entry, "") {
			name, declared := r.name(label)
			l, ids := r.limit(label, node, true)
			if declared && ids != nil {
				r.override(name, label.Value, l, r.readIDs(label.Value, ids))
			}
		}
	}
}

// groupOf returns the node of a group's name, or nil if the entry is not a
// group. A limit with the label "group" is a mapping, not a name.
func groupOf(entry *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(entry.Content); i += 2 {
		if name := entry.Content[i+1]; entry.Content[i].Value == "group" && name.Kind == yaml.ScalarNode {
			return name
		}
	}
	return nil
}

func (r *reader) readGroup(group, entry *yaml.Node) {
	where := "group " + spell.Line(group.Value)
	if group.Value == "" || group.Tag == "!!null" {
		where = "group"
		r.failNode(group, where, "group is empty, want the group's name")
	}
	var ids, limits *yaml.Node
	for key, value := range r.fields(entry, where) {
		switch key.Value {
		case "group":
		case "ids":
			ids = value
		case "limits":
			limits = value
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				r.want(value, where, "limits", "a mapping of labels to limits")
			}
		default:
			r.failNode(key, where, "unknown key %s, want group, ids and limits", spell.Quote(key.Value))
		}
	}
	var list []commented
	if ids == nil {
		r.fail(entry.Line, where, errors.New("ids is missing"))
	} else {
		list = r.readIDs(where, ids)
	}
	if limits == nil {
		r.fail(entry.Line, where, errors.New("limits is missing"))
	} else if limits.Kind == yaml.MappingNode {
		for label, node := range r.fields(limits, where) {
			name, declared := r.name(label)
			if l, _ := r.limit(label, node, false); declared {
				r.override(name, label.Value, l, list)
			}
		}
	}
}

func (r *reader) name(label *yaml.Node) (name stint.Name, declared bool) {
	name, declared = r.labels[label.Value]
	if _, seen := r.places[name]; declared && !seen {
		r.places[name] = idPlace{r.file, label}
	}
	if !declared {
		r.unknown = append(r.unknown, label.Value)
		err := fmt.Errorf("%w: the program declares no limit with this label", stint.ErrUnknownName)
		r.fail(label.Line, label.Value, err)
	}
	return name, declared
}

// limit reads the limit under a label. For an override it also returns the node of
// the ids, or nil if there is none.
func (r *reader) limit(label, node *yaml.Node, override bool) (l stint.Limit, ids *yaml.Node) {
	required, optional := []string{"burst", "count", "period"}, []string{"durability", "queue", "unlimited", "blocked"}
	ofCalendar := []string{"quota", "resets", "zone", "day-starts", "hour-starts"}
	if override {
		required = append(required, "ids")
	}
	if node.Kind != yaml.MappingNode {
		r.want(node, label.Value, "the limit", "a mapping with "+list(required))
		return stint.Limit{}, nil
	}
	given := make(map[string]*yaml.Node) // nil after a mistake in the value
	var only *yaml.Node                  // key unlimited or blocked
	for key, value := range r.fields(node, label.Value) {
		var err error
		want := spell.WantInteger
		switch field := key.Value; {
		case field == "burst":
			l.Burst, err = integer(value)
		case field == "count":
			l.Count, err = integer(value)
		case field == "period":
			l.Period, err = spell.Period(value.Value)
			want = spell.WantPeriod
		case field == "durability":
			l.Durability, err = stint.ParseDurability(value.Value)
			want = spell.WantDurability
		case field == "queue":
			l.Queue, err = integer(value)
		case slices.Contains(ofCalendar, field): // see quota
		case field == "ids" && override:
			ids = value
		case field == "unlimited" || field == "blocked":
			only, want = key, "true"
			if value.Tag != "!!bool" || value.Value != "true" {
				err = errors.New("not true")
			}
		default:
			r.failNode(key, label.Value, "unknown key %s, want %s",
				spell.Quote(field), list(slices.Concat(required, optional, ofCalendar)))
			continue
		}
		given[key.Value] = value
		if err != nil {
			given[key.Value] = nil
			r.want(value, label.Value, key.Value, want)
		}
	}
	if only != nil {
		for _, field := range slices.Concat(required[:3], optional, ofCalendar) {
			if _, ok := given[field]; ok && field != only.Value {
				r.failNode(only, label.Value, "%s and %s exclude each other", only.Value, field)
			}
		}
		l = stint.Unlimited
		if only.Value == "blocked" {
			l = stint.Blocked
		}
		required = required[3:]
	} else if r.quota(label, given, &l) {
		required = append([]string{"quota", "resets"}, required[3:]...)
	}
	for _, field := range required {
		if _, ok := given[field]; !ok {
			r.fail(label.Line, label.Value, fmt.Errorf("%s is missing", field))
		}
	}
	for _, err := range joined(l.Validate()) {
		if wrong, ok := errors.AsType[*spell.FieldError](err); ok && (!l.FollowsCalendar() || wrong.Field == "quota") {
			if value := given[wrong.Field]; value != nil {
				r.fail(value.Line, label.Value, wrong)
			}
		}
	}
	return l, ids
}

// quota reads a quota that follows the calendar into l. It returns false if no
// key is one of such a quota.
func (r *reader) quota(label *yaml.Node, given map[string]*yaml.Node, l *stint.Limit) bool {
	at := func(field string) *yaml.Node { return given[field] }
	first := cmp.Or(at("quota"), at("resets"), at("zone"), at("day-starts"), at("hour-starts"))
	if first == nil {
		return false
	}
	for _, field := range []string{"burst", "count", "period", "queue"} {
		if node, ok := given[field]; ok {
			r.fail(cmp.Or(node, first).Line, label.Value, fmt.Errorf("a quota that follows the calendar has no %s", field))
		}
	}
	var err error
	n, zone, start := int64(1), time.UTC, time.Duration(0)
	if node := at("quota"); node != nil {
		if n, err = integer(node); err != nil {
			r.want(node, label.Value, "quota", spell.WantInteger)
			n = 1
		}
	}
	unit := calendar.Day
	if node := at("resets"); node != nil {
		if unit, err = calendar.ParseUnit(node.Value, calendar.Unit.Adverb); err != nil {
			r.failNode(node, label.Value, "resets is %s, %w", describe(node), err)
			unit = calendar.Day
		}
		starts, most := "day-starts", unit.Most()
		if unit == calendar.Hour {
			starts = "hour-starts"
		}
		for _, field := range []string{"day-starts", "hour-starts"} {
			node := at(field)
			switch {
			case node == nil:
			case field != starts:
				r.fail(node.Line, label.Value, fmt.Errorf("%s is not for a quota that resets %s", field, at("resets").Value))
			default:
				if start, err = spell.Period(node.Value); err != nil || start >= most {
					r.want(node, label.Value, field, "a duration such as 4h or 30m, less than "+spell.ShortPeriod(most))
					start = 0
				}
			}
		}
	}
	if node := at("zone"); node != nil {
		if zone, err = calendar.Zone(node.Value); err != nil {
			r.fail(node.Line, label.Value, err)
		}
	}
	durability := l.Durability
	*l, err = stint.ParseLimit("1/" + calendar.Of(unit, zone, start).Calendar().String())
	if err != nil {
		r.fail(first.Line, label.Value, err)
	}
	l.Burst, l.Count, l.Durability = n, n, durability
	return true
}

// readIDs returns the ids of an override, or of a group.
func (r *reader) readIDs(label string, node *yaml.Node) []commented {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		r.want(node, label, "ids", "a list of ids")
		return nil
	}
	ids := make([]commented, 0, len(node.Content))
	for _, item := range node.Content {
		id, comment := item, ""
		if item.Kind == yaml.MappingNode {
			id, comment = r.commentedID(label, item)
		}
		switch {
		case id == nil:
		case id.Kind != yaml.ScalarNode || id.Tag == "!!null":
			r.want(id, label, "the id", "a scalar, or a mapping with id and comment")
		default:
			ids = append(ids, commented{id, comment})
		}
	}
	return ids
}

// override adds an override for each id, and reports invalid ids.
func (r *reader) override(name stint.Name, label string, l stint.Limit, given []commented) {
	spec, places := r.names[name], r.ids[name]
	if places == nil {
		places = make(map[string]idPlace, len(given))
		r.ids[name] = places
	}
	r.overrides = slices.Grow(r.overrides, len(given))
	for _, g := range given {
		canonical, err := spell.CanonicalOverride(spec.IDs, spec.OverrideIDs, g.id.Value)
		if err != nil {
			r.failNode(g.id, label, "%w", err)
			continue
		}
		if first, twice := places[canonical]; twice {
			r.failNode(g.id, label, "the id %s is given twice, first %s",
				spell.Quote(g.id.Value), r.whereIs(first, g.id.Value))
			continue
		}
		places[canonical] = idPlace{r.file, g.id}
		r.overrides = append(r.overrides, stint.Override{Key: name.Key(canonical), Limit: l, Comment: g.comment})
	}
}

// commentedID reads an id that is written as a mapping. The node is nil if the
// mapping has no id.
func (r *reader) commentedID(label string, node *yaml.Node) (id *yaml.Node, comment string) {
	for key, value := range r.fields(node, label) {
		switch key.Value {
		case "id":
			id = value
		case "comment":
			comment = value.Value
			if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
				r.want(value, label, "comment", "text")
			}
		default:
			r.failNode(key, label, "unknown key %s, want id and comment", spell.Quote(key.Value))
		}
	}
	if id == nil {
		r.fail(node.Line, label, errors.New("id is missing"))
	}
	return id, comment
}

// fields returns the keys and values of a mapping. It reports and leaves out
// keys that are repeated or are not words.
func (r *reader) fields(node *yaml.Node, label string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		lines := make(map[string]int)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			first, twice := lines[key.Value]
			switch {
			case key.Tag == "!!merge":
				r.failNode(key, label, "merge keys (<<) are not allowed in a limits file")
			case key.Kind != yaml.ScalarNode || key.Tag == "!!null":
				r.want(key, label, "the key", "a word")
			case twice:
				r.failNode(key, label, "%s is given twice, first in line %d", spell.Quote(key.Value), first)
			default:
				lines[key.Value] = key.Line
				if !yield(key, value) {
					return
				}
			}
		}
	}
}

// refuseAnchors reports anchors, aliases and tags. With them, a limit would not
// mean what its own lines say.
func (r *reader) refuseAnchors(node *yaml.Node) {
	switch {
	case node.Kind == yaml.AliasNode:
		r.fail(node.Line, "", fmt.Errorf("aliases (*%s) are not allowed in a limits file", node.Value))
	case node.Anchor != "":
		r.fail(node.Line, "", fmt.Errorf("anchors (&%s) are not allowed in a limits file", node.Anchor))
	case node.Style&yaml.TaggedStyle != 0:
		r.fail(node.Line, "", fmt.Errorf("tags (%s) are not allowed in a limits file", node.Tag))
	}
	for _, child := range node.Content {
		r.refuseAnchors(child)
	}
}

func (r *reader) fail(line int, label string, err error) {
	r.errs = append(r.errs, &stint.ConfigError{File: r.file, Line: line, Label: label, Err: err})
}

// failNode reports a node, unless it is an alias or has a tag, which
// refuseAnchors reports.
func (r *reader) failNode(node *yaml.Node, label, format string, args ...any) {
	if node.Kind != yaml.AliasNode && node.Style&yaml.TaggedStyle == 0 {
		r.fail(node.Line, label, fmt.Errorf(format, args...))
	}
}

// want reports that what a node has is not what it should be.
func (r *reader) want(node *yaml.Node, label, what, want string) {
	r.failNode(node, label, "%s is %s, want %s", what, describe(node), want)
}

// failSyntax reports an error of the YAML parser. The parser's text may have a
// line. In "did not find expected …" that is an earlier one.
func (r *reader) failSyntax(err error, read *lineReader) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), read.line()
	earlier := line
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, after, ok := strings.Cut(rest, ": "); ok {
			text = after
			if n, err := strconv.Atoi(number); err == nil {
				earlier = min(line, n)
			}
		}
	}
	switch {
	case read.tabIndents(line):
		text = "the line is indented with a tab, want spaces"
	case text == "found incompatible YAML document":
		text, line = "leave out the line %YAML, or write %YAML 1.1", 1
	case !strings.HasPrefix(text, "did not find"):
		line = earlier
	}
	r.fail(line, "", errors.New("not YAML: "+text))
}

// lineReader gives the YAML parser one line at a time. So the parser has not read
// beyond a mistake, or only a few bytes of the next line.
type lineReader struct {
	data []byte
	next int // index of what the parser reads next
}

func (l *lineReader) Read(p []byte) (n int, err error) {
	rest := l.data[l.next:]
	if len(rest) == 0 {
		return 0, io.EOF
	}
	if end := bytes.IndexByte(rest, '\n'); end >= 0 {
		rest = rest[:end+1]
	}
	n = copy(p, rest)
	l.next += n
	return n, nil
}

// line returns the number of the line that was read last.
func (l *lineReader) line() int {
	return 1 + bytes.Count(l.data[:max(0, l.next-1)], []byte("\n"))
}

// tabIndents returns whether there is a tab in the indentation of a line.
func (l *lineReader) tabIndents(line int) bool {
	lines := bytes.SplitN(l.data, []byte("\n"), line+1)
	text := lines[line-1]
	return bytes.IndexByte(text[:len(text)-len(bytes.TrimLeft(text, " \t"))], '\t') >= 0
}

// whereIs returns the place of an id, for an error text. If the id is spelled
// in another way there, it adds that spelling.
func (r *reader) whereIs(p idPlace, here string) string {
	place := fmt.Sprint("in line ", p.node.Line)
	if p.file != r.file {
		place = fmt.Sprintf("at %s:%d", p.file, p.node.Line)
	}
	if p.node.Value != here {
		place += " as " + spell.Quote(p.node.Value)
	}
	return place
}

func integer(node *yaml.Node) (int64, error) {
	if node.Tag != "!!int" { // "20" is a string
		return 0, errors.New("not an integer")
	}
	return spell.Int(node.Value)
}

// describe returns what a node is, for an error text.
func describe(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode && len(node.Content) > 0:
		return "a mapping"
	case node.Kind == yaml.SequenceNode && len(node.Content) > 0:
		return "a list"
	case node.Kind != yaml.ScalarNode || node.Tag == "!!null":
		return "empty"
	}
	return spell.Quote(node.Value)
}

func list(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
