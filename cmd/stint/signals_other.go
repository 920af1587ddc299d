//go:build !unix

package main

import "os"

// passedOn are the signals that run passes on to its command.
var passedOn = []os.Signal{os.Interrupt}
