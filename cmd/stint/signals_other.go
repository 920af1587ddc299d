//go:build !unix

package main

import (
	"os"
)

// passedOn are the signals that a command run by stint gets in its place.
var passedOn = []os.Signal{os.Interrupt}
