//go:build long

package settle_test

const long = true
