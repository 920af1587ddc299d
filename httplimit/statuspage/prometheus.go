package statuspage

import (
	_ "embed"
	"strings"
	"text/template"
)

//go:embed prometheus.txt
var prometheusText string

// prometheusTemplate writes a report in Prometheus' text format, version 0.0.4.
// No label holds an id.
var prometheusTemplate = template.Must(template.New("prometheus").
	Funcs(template.FuncMap{"label": labelText}).Parse(prometheusText))

var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labelText returns the value of a label, in quotes.
func labelText(s string) string {
	return `"` + labelEscaper.Replace(strings.ToValidUTF8(s, "\uFFFD")) + `"`
}
