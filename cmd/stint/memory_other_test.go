//go:build !unix

package main

import "os"

// peakMemory returns 0: not known.
func peakMemory(*os.ProcessState) int64 { return 0 }
