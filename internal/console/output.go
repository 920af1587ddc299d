package console

import (
	"io"

	"github.com/stint-go/stint/internal/display"
)

// Output is the form in which a command prints its result.
type Output struct {
	JSON, Quiet bool
}

// Print prints the result as JSON or as text, or not at all if Quiet is set.
func (o *Output) Print(w io.Writer, asJSON any, text string) (err error) {
	switch {
	case o.JSON:
		err = display.WriteJSON(w, asJSON)
	case !o.Quiet:
		_, err = io.WriteString(w, text)
	}
	return Failed(err)
}
