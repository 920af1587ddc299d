package main

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// word is a word with its punctuation.
type word struct {
	text string
	line int
}

// sentence is a list of words. The last one mostly ends in a full stop.
type sentence []word

func (s sentence) String() string {
	texts := make([]string, len(s))
	for i, w := range s {
		texts[i] = w.text
	}
	return strings.Join(texts, " ")
}

// bare returns a word in lower case without its punctuation.
func bare(s string) string {
	return strings.ToLower(strings.TrimFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }))
}

// notNouns are the words after which "who" has no noun.
var notNouns = strings.Fields("of to by for and or than with as say says if when about know knows that is are was " +
	"from see sees ask asks but not only what how tell tells find finds learn on in matter does which")

// kinds returns the rules that a sentence breaks.
func (s sentence) kinds() (kinds []string) {
	words := 0
	for i, w := range s {
		if bare(w.text) != "" {
			words++
		}
		before, ends := "", true // whether a clause ends before the word
		if i > 0 {
			before = bare(s[i-1].text)
			ends = strings.ContainsAny(s[i-1].text[len(s[i-1].text)-1:], ",;:") || strings.HasPrefix(w.text, "(") ||
				s[i-1].text == "–" || s[i-1].text == "—"
		}
		if strings.HasPrefix(w.text, `"`) || i > 0 && strings.HasPrefix(s[i-1].text, `"`) {
			continue // the text is about the word
		}
		switch bare(w.text) {
		case "where":
			if ends || slices.Contains([]string{"and", "but", "or", "than"}, before) {
				kinds = append(kinds, where)
			}
		case "for":
			if before == "but" && !ends {
				kinds = append(kinds, butFor)
			}
		case "who":
			question := strings.HasSuffix(s[len(s)-1].text, "?")
			if !question && (before == "" || slices.Contains(notNouns, before)) {
				kinds = append(kinds, who)
			}
		}
	}
	if words > 30 {
		kinds = append(kinds, longSentence)
	}
	return kinds
}

// text is the prose of a file: paragraphs of words, and the hits in its lines.
type text struct {
	paragraphs [][]word
	hits       []hit
}

func (t *text) hit(line int, kind, text string) {
	t.hits = append(t.hits, hit{line: line, kind: kind, text: text})
}

// width reports a line that is too wide.
func (t *text) width(line int, s string, most int, kind string) {
	if utf8.RuneCountInString(s) > most {
		t.hit(line, kind, strings.TrimSpace(s))
	}
}

// begin starts another paragraph.
func (t *text) begin() {
	if n := len(t.paragraphs); n == 0 || len(t.paragraphs[n-1]) > 0 {
		t.paragraphs = append(t.paragraphs, nil)
	}
}

// In Markdown, code is one word and a link is its text.
var (
	inlineCode = regexp.MustCompile("`[^`]+`")
	link       = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// add appends a line to the last paragraph.
func (t *text) add(line int, s string) {
	s = link.ReplaceAllString(s, "$1")
	s = inlineCode.ReplaceAllStringFunc(s, func(code string) string { return strings.ReplaceAll(code, " ", "_") })
	if len(t.paragraphs) == 0 {
		t.begin()
	}
	last := &t.paragraphs[len(t.paragraphs)-1]
	for _, w := range strings.Fields(s) {
		*last = append(*last, word{w, line})
	}
}

// sentences splits the paragraphs.
func (t *text) sentences() (all []sentence) {
	for _, p := range t.paragraphs {
		begin := 0
		for i, w := range p {
			if i == len(p)-1 || endsSentence(w.text) {
				all = append(all, p[begin:i+1])
				begin = i + 1
			}
		}
	}
	return all
}

// endsSentence reports whether a sentence ends with the word.
func endsSentence(w string) bool {
	w = strings.TrimRight(w, "\"')*_”")
	if w == "" || !strings.ContainsAny(w[len(w)-1:], ".?!") {
		return false
	}
	return !slices.Contains([]string{"e.g.", "i.e.", "vs.", "cf."}, strings.TrimLeft(w, "("))
}
