// Package liveheap tells tests how much memory a program holds while it runs.
package liveheap

import (
	"runtime"
	"runtime/metrics"
)

// Bytes collects garbage, and returns how much memory is reachable. The collector
// counts what is allocated while it marks as reachable. On a busy machine that can be
// several times what the program holds, so Bytes takes it off, and may return a little
// too little.
func Bytes() int64 {
	allocated := read("/gc/heap/allocs:bytes")
	runtime.GC()
	return read("/gc/heap/live:bytes") - (read("/gc/heap/allocs:bytes") - allocated)
}

func read(name string) int64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
