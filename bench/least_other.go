//go:build !linux || !amd64

package main

var least, leastGrouped []Contestant
